"""A script that returns one number."""

import torch
from torch import nn

from contdrop import lab


def run(job):
    model = job.build(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)))
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(job.seed))
    job.same("data", x)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - x[:, :1]).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss)


study = lab.Study("one-number", metric=lab.Metric("loss"), run=run, runs=3)
