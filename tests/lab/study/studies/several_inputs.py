"""A model with several inputs: a picture and a table, in one nested batch."""

import torch
from torch import nn

from contdrop import lab


def data():
    generator = torch.Generator().manual_seed(0)
    pictures, tables = torch.randn(90, 1, 8, 8, generator=generator), torch.randn(90, 5, generator=generator)
    labels = (pictures.mean((1, 2, 3)) * 8 + tables[:, 0] > 0).long()
    return lab.Data(train=((pictures, tables), labels), test=0.3, validation=0.2)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.2))
        self.table = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.4))
        self.output = nn.Linear(16, 2)

    def forward(self, picture, table):
        return self.output(torch.cat([self.picture(picture), self.table(table)], 1))


study = lab.Study("several-inputs", data, Both, metric=["auroc", "error"], epochs=2, runs=2)
