"""Training by Lightning, with layers and statistics from the lab. Needs: pip install lightning

contdrop compare examples/lightning_loop.py
"""

import lightning
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from contdrop import lab

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


def run(job):
    x, y = (torch.tensor(array) for array in load_wine(return_X_y=True))
    x = ((x - x.mean(0)) / x.std(0)).float()
    # All runs use the same test examples, as per_example requires; the training examples vary.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, rest = order[:60], order[60:]
    generator = torch.Generator().manual_seed(job.seed)
    train = rest[torch.randperm(len(rest), generator=generator)[:100]]
    job.same("split", train)
    module = job.build(Classifier)
    loader = DataLoader(TensorDataset(x[train], y[train]), 20, shuffle=True, generator=generator)
    lightning.Trainer(max_epochs=job.epochs, accelerator="cpu", **QUIET).fit(module, loader)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(module.eval().layers(x[test]), y[test], reduction="none")
    job.tell(losses.mean().item(), per_example=losses)


study = lab.Study("gallery-lightning", run=run, metric=lab.Metric("nll"), epochs=10, runs=6)
