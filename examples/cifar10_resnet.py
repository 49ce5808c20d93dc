"""CIFAR-10 with a small residual network, flips and shifts. Needs the data: contdrop data get cifar-10

contdrop compare examples/cifar10_resnet.py
"""

import torch
from torch import nn

from contdrop import lab
from contdrop.replication import datasets as data_sets


def shift_and_flip(item, generator):
    image, label = item
    rows, columns = torch.randint(-4, 5, (2,), generator=generator).tolist()
    image = image.roll((rows, columns), (1, 2))
    return (image.flip(2) if torch.rand((), generator=generator) < 0.5 else image), label


def data():
    found = data_sets.load("cifar-10")
    train, test = (found.train_images, found.train_labels), (found.test_images[:2000], found.test_labels[:2000])
    return lab.Data(train=train, test=test, validation=1000, transform=shift_and_flip, subset=1000)


class Block(nn.Module):
    """Two convolutions with dropout between them, and a shortcut."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, out, 3, stride, 1, bias=False)),
            *(nn.BatchNorm2d(out), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(out, out, 3, 1, 1, bias=False)),
        )
        self.short = nn.Conv2d(channels, out, 1, stride, bias=False) if channels != out else nn.Identity()

    def forward(self, x):
        return self.layers(x) + self.short(x)


def model():
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    end = [nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), *blocks, *end)


def forward(network, batch):
    return network(batch[0].float() / 127.5 - 1)


def optimizer(network):
    return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def scheduler(optimizer, steps):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)


study = lab.Study(
    "gallery-cifar10",
    data,
    model,
    forward=forward,
    optimizer=optimizer,
    batch_size=32,
    epochs=6,
    runs=4,
    training=lab.Training(scheduler=scheduler, evaluate="last"),
)
