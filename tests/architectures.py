"""Models of ten architectures, small, with all their dropout on, and an input for each."""

import importlib.machinery
import importlib.util
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import contdrop as cd

RATE = 0.2


class Recurrent(nn.Module):
    """LSTM with dropout between its layers, on its input and on its output."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.drop = nn.Dropout(RATE)  # used twice
        self.lstm = nn.LSTM(8, 8, num_layers=3, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        states, _ = self.lstm(self.drop(self.embedding(tokens)))
        return self.head(self.drop(states[:, -1]))


def block(before, after):
    first, second = (nn.Conv2d(maps, after, 3, padding=1) for maps in (before, after))
    units = [nn.BatchNorm2d(after), nn.ReLU(inplace=True), nn.Dropout2d(RATE)]
    return nn.Sequential(first, *units, second, nn.ReLU(inplace=True))


class Tokens(nn.Module):
    """Reads token ids, and weights for them."""

    def __init__(self, drop=None):
        super().__init__()
        self.embedding, self.drop, self.head = nn.Embedding(9, 6), drop or nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, ids, weights=None):
        states = self.embedding(ids)
        states = states if weights is None else states * weights[..., None]
        return self.head(self.drop(states.mean(1)))


class UNet(nn.Module):
    """Two levels; functional dropout in the middle."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([block(1, 4), block(4, 8)])
        self.middle = block(8, 16)
        self.up = nn.ModuleList([block(24, 8), block(12, 4)])
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        kept = []
        for convolutions in self.down:
            kept.append(convolutions(x))
            x = F.max_pool2d(kept[-1], 2)
        x = F.dropout(self.middle(x), 0.3, self.training)
        for convolutions, across in zip(self.up, reversed(kept)):
            x = convolutions(torch.cat([F.interpolate(x, scale_factor=2), across], 1))
        return self.out(x)


def mixed(width, inside, drop):
    return nn.Sequential(nn.Linear(width, inside), nn.GELU(), drop, nn.Linear(inside, width), drop)


class MLPMixer(nn.Module):
    """One dropout layer shared by everything."""

    def __init__(self, patches=9, width=8, depth=2):
        super().__init__()
        drop = nn.Dropout(RATE)
        self.embed = nn.Conv2d(1, width, 4, stride=4)
        self.tokens = nn.ModuleList([mixed(patches, 12, drop) for _ in range(depth)])
        self.channels = nn.ModuleList([mixed(width, 12, drop) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * depth)])
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels)):
            x = x + tokens(self.norms[2 * i](x).mT).mT
            x = x + channels(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


class WithAttributes(nn.Module):
    """A module with these attributes."""

    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


class Constant(WithAttributes):
    """Dropout in a function."""

    def forward(self, x):
        return F.dropout(x, 0.3, self.training)


class Centred(nn.Module):
    """Couples the examples of a batch."""

    def forward(self, x):
        return x - x.mean(0)


def blobs(n, seed, classes=3):
    """Examples of overlapping clouds in ten dimensions, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    centres = 1.4 * torch.randn(classes, 10, generator=torch.Generator().manual_seed(99))
    return centres[y] + 1.5 * torch.randn(n, 10, generator=generator), y


def trained(law, n=400, epochs=30):
    """Train a classifier of the clouds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), cd.Dropout(law), nn.Linear(32, 3))
    x, y = blobs(n, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def _transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
RATES = {"hidden_dropout_prob": RATE, "attention_probs_dropout_prob": 0.1}


def bert():
    t = _transformers()
    config = t.BertConfig(vocab_size=30, max_position_embeddings=16, **SIZES, **RATES)
    return t.BertForSequenceClassification(config), {"input_ids": _tokens(30)}


def gpt2():
    t = _transformers()
    config = t.GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0.15)
    return t.GPT2LMHeadModel(config), {"input_ids": _tokens(30)}


def vit():
    t = _transformers()
    config = t.ViTConfig(image_size=12, patch_size=4, num_channels=1, **SIZES, **RATES)
    return t.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 1, 12, 12)}


def t5():
    t = _transformers()
    sizes = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = t.T5Config(decoder_start_token_id=0, dropout_rate=RATE, **sizes)
    return t.T5ForConditionalGeneration(config), {"input_ids": _tokens(30), "decoder_input_ids": _tokens(30)}


def timm_vit():
    sizes = {"img_size": 12, "patch_size": 4, "in_chans": 1, "num_classes": 3, "embed_dim": 16, "depth": 2}
    rates = {"drop_rate": 0.1, "pos_drop_rate": 0.1, "proj_drop_rate": RATE, "attn_drop_rate": 0.15}
    network = _timm().models.vision_transformer.VisionTransformer
    return network(num_heads=2, drop_path_rate=0.3, **sizes, **rates), {"x": torch.randn(2, 1, 12, 12)}


def timm_convnext():
    sizes = {"in_chans": 1, "num_classes": 3, "depths": (1, 1, 2, 1), "dims": (8, 8, 16, 16)}
    model = _timm().models.convnext.ConvNeXt(drop_rate=RATE, drop_path_rate=0.3, **sizes)
    return model, {"x": torch.randn(2, 1, 32, 32)}


def transformer():
    model = nn.Transformer(8, 2, 2, 2, 16, dropout=RATE, batch_first=True)
    return model, {"src": torch.randn(2, 5, 8), "tgt": torch.randn(2, 4, 8)}


ARCHITECTURES = {
    function.__name__: function for function in (bert, gpt2, vit, t5, timm_vit, timm_convnext, transformer)
}
ARCHITECTURES |= {
    "lstm": lambda: (Recurrent(), {"tokens": _tokens(20)}),
    "unet": lambda: (UNet(), {"x": torch.randn(2, 1, 16, 16)}),
    "mixer": lambda: (MLPMixer(), {"x": torch.randn(2, 1, 12, 12)}),
}


def _tokens(vocabulary):
    return torch.randint(1, vocabulary, (2, 6))


# timm imports torchvision for its data, which its models do not need. The index's torchvision is a CUDA build whose
# operators do not load beside a CPU torch; so where it cannot be imported, empty modules stand for it.


class _AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _StandIn:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, _StandIn, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return _Anything(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def _timm():
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed: it asks for torchvision, which the index has for CUDA only")
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.meta_path.append(_StandIn)
    try:
        import timm
        import timm.models.convnext
        import timm.models.vision_transformer
    finally:
        if _StandIn in sys.meta_path:
            sys.meta_path.remove(_StandIn)
    return timm
