"""A Lightning user keeps the loop: the lab says which network, Lightning trains it."""

import lightning
import torch
from torch import nn

from contdrop import lab

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = X[:, :2].sum(1, keepdim=True)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))

    def training_step(self, batch, _):
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


def run(job):
    module = job.build(Regression)
    rows = torch.utils.data.TensorDataset(X[:80], Y[:80])
    order = torch.Generator().manual_seed(job.seed)
    loader = torch.utils.data.DataLoader(rows, 20, shuffle=True, generator=order)
    quiet = dict.fromkeys(
        ("logger", *(f"enable_{x}" for x in ("checkpointing", "progress_bar", "model_summary"))), False
    )
    lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(module, loader)
    with torch.no_grad():
        squares = (module.eval().layers(X[80:]) - Y[80:]).square()
    job.tell(float(squares.mean().sqrt()))


study = lab.Study("lightning-loop", metric=lab.Metric("rmse"), run=run, runs=2)
