"""Other dropout in a model that exists already, and back again."""

import copy
import warnings

import pytest
import torch
from torch import nn

import contdrop as cd
from contdrop.surgery import noise


def mlp(p=0.3, **options):
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Dropout(p, **options), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 3)
    )


def test_the_shape_of_a_swap():
    model = mlp()
    first, second = model[2], model[5]
    keys = list(model.state_dict())
    swap = cd.swap_dropout(model, cd.Gaussian(sigma=0.2))
    assert isinstance(swap, cd.Swap)
    assert list(swap.replaced) == ["2", "5"]
    assert swap.replaced["2"] == (first, model[2])
    assert type(model[2]) is cd.Dropout
    assert model[2].law == model[5].law == cd.Gaussian(sigma=0.2)
    assert model[2].scale == "inverted"
    assert swap.unreachable == []
    assert swap.layers == [model[2], model[5]]
    assert repr(swap) == "swapped 2 dropout layers; out of reach: nothing"
    assert list(model.state_dict()) == keys
    swap.undo()
    assert model[2] is first
    assert model[5] is second
    swap.undo()  # does nothing


@pytest.mark.parametrize(
    ("law", "found"),
    [
        ("gaussian:sigma=0.4", cd.Gaussian(sigma=0.4)),
        (cd.Uniform(), cd.Uniform()),
        (lambda name, layer: "uniform", cd.Uniform()),
        (lambda name, layer: cd.Bernoulli(keep=1 - layer.p), cd.Bernoulli(keep=0.7)),
    ],
)
def test_ways_to_give_a_law(law, found):
    model = mlp()
    cd.swap_dropout(model, law, scale="paper")
    assert model[2].law == model[5].law == found
    assert model[2].scale == "paper"


def test_a_function_may_leave_a_layer():
    model = mlp()
    left = model[2]
    assert list(cd.swap_dropout(model, lambda name, _: None if name == "2" else "uniform").replaced) == ["5"]
    assert model[2] is left


def test_none_is_no_noise():
    model = mlp(inplace=True)
    x = torch.randn(4, 6)
    cd.swap_dropout(model, None)
    state = torch.get_rng_state()
    assert torch.equal(model(x), model.eval()(x))
    assert torch.equal(torch.get_rng_state(), state)
    assert model[2].p == 0  # models hand it on to attention functions
    fused = nn.Sequential(nn.Linear(6, 6), cd.GaussianDropout(0.3, activation="relu"))
    cd.swap_dropout(fused, None)
    assert torch.equal(fused(x), fused[0](x).relu())


@pytest.mark.parametrize("family", ["bernoulli", "uniform", "gaussian", cd.Gaussian])
@pytest.mark.parametrize("p", [0.05, 0.1, 0.2, 0.25])
def test_matching_takes_each_layers_own_strength(family, p):
    model = nn.Sequential(nn.Dropout(p), nn.Dropout2d(p / 2), nn.Dropout(0.0), cd.GaussianDropout(0.2))
    off = model[2]
    swap = cd.swap_dropout(model, family, match="variance")
    assert list(swap.replaced) == ["0", "1", "3"]
    assert model[2] is off
    assert model[0].law.relative_variance == pytest.approx(p / (1 - p), rel=1e-9)
    assert model[1].law.relative_variance == pytest.approx(p / (2 - p), rel=1e-9)
    assert model[3].law.relative_variance == pytest.approx(cd.Gaussian(sigma=0.2).relative_variance, rel=1e-9)
    assert model[0].p == pytest.approx(p, rel=1e-9)
    assert model[0].law.kind == (family if isinstance(family, str) else family.kind)


def test_every_kind_of_layer_keeps_its_shape_of_mask():
    x = torch.ones(4, 5, 3, 2, 6)
    inputs = {nn.Dropout1d: x[..., 0, 0], nn.Dropout2d: x[..., 0], nn.Dropout3d: x}
    for layer, batch in inputs.items():
        model = nn.Sequential(layer(0.5))
        cd.swap_dropout(model, "gaussian")
        maps = model(batch).flatten(2)
        assert (maps == maps[..., :1]).all()
        assert len(maps[..., 0].unique()) > 10  # of 20 maps
        if layer is not nn.Dropout2d:  # without an axis for the batch, as torch does
            alone = model(batch[0]).flatten(1)
            assert (alone == alone[:, :1]).all()
            assert len(alone[:, 0].unique()) > 2
    model = nn.Sequential(nn.Dropout2d(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        maps = model(torch.ones(4, 5, 6))  # [N, C, L] for torch
    assert (maps == maps[..., :1]).all()
    cd.swap_dropout(model, "gaussian")
    with pytest.raises(IndexError, match="expected shared_axes between -3 and 2"):
        model(torch.ones(4, 5, 6))
    model = nn.Sequential(cd.GaussianDropout(0.3, shared_axes=(1,)))
    cd.swap_dropout(model, "uniform")
    assert model[0].shared_axes == (1,)


def test_shared_layers_stay_one():
    drop = nn.Dropout(0.1)
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2), drop), "b": nn.Sequential(drop, drop), "c": drop})
    swap = cd.swap_dropout(model, "uniform", only="c")  # one name is enough
    new = model["c"]
    assert type(new) is cd.Dropout
    assert model["a"][1] is model["b"][0] is model["b"][1] is new
    assert list(swap.replaced) == ["c", "a.1", "b.0", "b.1"]
    assert swap.layers == [new]
    swap.undo()
    assert model["a"][1] is model["b"][0] is model["b"][1] is model["c"] is drop
    block = nn.Sequential(nn.Dropout(0.1))
    model = nn.Sequential(block, block)
    assert list(cd.swap_dropout(model, "uniform").replaced) == ["0.0"]
    assert type(model[1][0]) is cd.Dropout


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("5", ["5"]),
        ("*", ["2", "5"]),
        (["2"], ["2"]),
        (lambda name, layer: layer.inplace, ["2"]),
        (lambda name, layer: False, []),
    ],
)
def test_only_some(only, names):
    assert list(cd.swap_dropout(mlp(inplace=True), "uniform", only=only).replaced) == names


def test_mode_hooks_generator_and_options_are_kept():
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Dropout(0.3, inplace=True), cd.UniformDropout(generator=generator))
    old = model[0]
    seen = []
    handle = model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    model[0].eval()
    swap = cd.swap_dropout(model, "gaussian")
    assert (model[0].training, model[1].training) == (False, True)
    assert model[0].inplace
    assert model[1].generator is generator
    model(torch.ones(3))
    assert seen == ["before", "forward"]
    handle.remove()  # from both
    model[0].register_forward_hook(lambda *_: seen.append("later"))
    model.train()
    swap.undo()
    assert old.training  # the mode of the model now, not that of then
    seen.clear()
    model(torch.ones(3))
    assert seen == ["before", "later"]


def test_backward_hooks_of_meanwhile_run_after_undo():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    swap = cd.swap_dropout(model, "gaussian")
    seen = []
    model[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    swap.undo()
    model(torch.ones(2, 4)).sum().backward()
    assert seen == ["backward"]


def test_swaps_are_undone_in_reverse_order():
    model = mlp()
    original = model[2]
    first, second = cd.swap_dropout(model, "uniform"), cd.swap_dropout(model, "gaussian")
    with pytest.raises(RuntimeError, match="expected 2 to be the layer that swap_dropout put there, got Dropout; undo"):
        first.undo()
    second.undo()
    first.undo()
    assert model[2] is original


def test_swapped_models_are_copied_and_saved(tmp_path):
    model = mlp()
    cd.swap_dropout(model, "gaussian")
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.randn(5, 6)
    outputs = []
    for each in (model, twin, loaded):
        torch.manual_seed(0)
        outputs.append(each(x))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


ENCODER = nn.ModuleDict({"encoder": mlp(), "head": nn.Linear(3, 3)})
SELU = nn.Sequential(nn.Dropout(), nn.AlphaDropout(0.1))
LSTMS = nn.Sequential(*(nn.LSTM(3, 3, 2, dropout=0.1) for _ in range(5)))


def test_refusals(code_refusals):
    code_refusals("swap_refusals", globals())


def test_an_error_changes_nothing():
    model = mlp(0.1)
    model[5].p = 0.6
    kept = model[2]
    with pytest.raises(ValueError, match=r"layer 5: Uniform.matching: .*; use 'normal', which reaches every strength"):
        cd.swap_dropout(model, "uniform", match="variance")
    assert model[2] is kept


def test_layers_that_cannot_be_swapped_may_be_left_out():
    selu = nn.Sequential(nn.Dropout(0.2), nn.FeatureAlphaDropout(0.1))
    swap = cd.swap_dropout(selu, "gaussian", only=["0"])
    assert swap.unreachable == [("1", "FeatureAlphaDropout, a dropout layer with a forward of its own", 0.1)]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_unclipped_gaussian_reaches_every_strength(p):
    model = mlp(p)
    assert (noise(model[2]), noise(cd.UniformDropout())) == (cd.Bernoulli(keep=1 - p), cd.Uniform())
    cd.swap_dropout(model, "normal", match="variance")
    assert model[2].law == cd.Gaussian.matching(cd.Bernoulli(keep=1 - p), clip=False)
    assert model[2].law.relative_variance == pytest.approx(p / (1 - p), rel=1e-12)


def test_the_convention_of_a_layer_is_kept():
    x = torch.ones(3)
    old = cd.UniformDropout(scale="paper")
    for law, scale, evaluated in [("gaussian", None, 0.5), (None, None, 0.5), ("gaussian", "inverted", 1.0)]:
        model = nn.Sequential(old).eval()
        cd.swap_dropout(model, law, scale=scale)
        assert torch.equal(model(x), evaluated * x)
    model = nn.Sequential(old)
    cd.swap_dropout(model, None)
    assert torch.equal(model(x), 0.5 * x)  # in training too
    assert model[0].p == 0
    model = nn.Sequential(cd.BernoulliDropout(1.0, scale="paper"))
    cd.swap_dropout(model, None)
    assert not model(x).any()
    assert not model.eval()(x).any()
    model = nn.Sequential(nn.Dropout(0.5))
    cd.swap_dropout(model, "uniform")
    assert model[0].scale == "inverted"


def test_a_plain_bernoulli_law_makes_a_dropout_of_torchs_class():
    law = cd.Bernoulli(keep=0.123456789)
    model = nn.Sequential(
        *[nn.Dropout(0.3), cd.GaussianDropout(0.2, scale="paper"), nn.Dropout2d(0.3)],
        cd.UniformDropout(activation="relu"),
    )
    swap = cd.swap_dropout(model, law)
    assert [isinstance(layer, nn.Dropout) for layer in model] == [True, True, False, False]
    assert {layer.law for layer in model} == {law}
    assert [layer.scale for layer in model] == ["inverted", "paper", "inverted", "inverted"]
    model[0].p = 0.25
    assert model[0].law == cd.Bernoulli(keep=0.75)
    swap.undo()
    cd.swap_dropout(model, "bernoulli", match="variance")
    assert type(model[0]) is cd.BernoulliDropout
    assert model[0].law == cd.Bernoulli(keep=0.7)  # to the last bit
    assert type(model[1]) is cd.Dropout  # a kept value other than 1
    fused = mlp()
    cd.swap_dropout(fused, "bernoulli", fuse_relu=True)
    assert not any(isinstance(layer, nn.Dropout) for layer in fused)  # which has no ReLU inside


def test_a_forward_of_the_layers_own_is_not_lost():
    for drop in (nn.Dropout(0.3), cd.BernoulliDropout(0.3)):
        drop.forward = lambda z: z + 1
        model = nn.Sequential(nn.Dropout(0.1), drop)
        swap = cd.swap_dropout(model, "uniform")
        assert list(swap.replaced) == ["0"]
        assert model[1] is drop
        what = f"{type(drop).__name__}, a dropout layer with a forward of its own"
        assert swap.unreachable == [("1", what, 0.3)]


def test_the_factor_of_evaluation_is_not_skipped_in_torchs_encoder():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        fused = model(x)
        swap = cd.swap_dropout(model, "uniform", scale="paper")
        assert not torch.allclose(model(x), fused, atol=0.01)
    found = model(x)  # with gradients, which the fused path does not take
    with torch.no_grad():
        torch.testing.assert_close(model(x), found)
        torch.testing.assert_close(copy.deepcopy(model)(x), found)
        swap.undo()
        assert torch.equal(model(x), fused)  # in the fused path again
    cd.swap_dropout(model, "uniform")
    assert model.activation_relu_or_gelu  # nothing to skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models_are_refused_and_scripted_parts_left_alone():
    with pytest.raises(TypeError, match=r"got a scripted one; swap before torch.jit.script"):
        cd.swap_dropout(torch.jit.script(mlp()), "uniform")
    part = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)))
    model = nn.Sequential(part, nn.ReLU(), nn.Dropout(0.2))
    swap = cd.swap_dropout(model, "gaussian", fuse_relu=True)
    assert list(swap.replaced) == swap.fused == ["2"]
    assert model[0] is part
    swap.undo()
    assert isinstance(model[1], nn.ReLU)


def test_dropout_is_counted_whatever_a_module_calls_its_generator():
    model = nn.Sequential(nn.Dropout(0.3))
    model.generator = ["a list"]
    assert len(cd.surgery.count_dropout(model, torch.ones(3)).others) == 1
