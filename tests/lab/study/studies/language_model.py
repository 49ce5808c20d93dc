"""A causal language model, compared by its perplexity."""

import pathlib

import torch
from torch import nn

from contdrop import lab

TEXT = pathlib.Path(__file__).read_text() * 3
SYMBOLS = sorted(set(TEXT))
LENGTH = 16


def data():
    codes = torch.tensor([SYMBOLS.index(symbol) for symbol in TEXT])
    rows = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    return lab.Data(train=(rows[:, :-1], rows[:, 1:]), test=0.2, validation=0.2)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(len(SYMBOLS), 16), nn.Parameter(torch.zeros(LENGTH, 16))
        self.dropout = nn.Dropout(0.1)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.output = nn.Linear(16, len(SYMBOLS))

    def forward(self, codes):
        mask = nn.Transformer.generate_square_subsequent_mask(codes.shape[1])
        hidden = self.layer(self.dropout(self.symbols(codes) + self.places), src_mask=mask, is_causal=True)
        return self.output(hidden)


study = lab.Study(
    "language-model", data, Transformer, metric=["perplexity", "error"], epochs=1, runs=2,
    training=lab.Training(clip=1.0),
)  # fmt: skip
