"""Images in a folder, read one by one by loader workers, with augmentation that draws from the item's own generator."""

import pathlib
import tempfile

import numpy as np
import torch
from PIL import Image
from torch import nn

from contdrop import lab

PLACE = pathlib.Path(tempfile.gettempdir()) / "contdrop-test-images"


class Folder(torch.utils.data.Dataset):
    def __init__(self, numbers):
        self.paths, self.targets = [PLACE / f"{number}.png" for number in numbers], [number % 2 for number in numbers]
        PLACE.mkdir(exist_ok=True)
        for number, path in zip(numbers, self.paths):
            pixels = np.random.default_rng(number).integers(100 * (number % 2), 200, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return torch.from_numpy(np.array(Image.open(self.paths[index]))).permute(2, 0, 1) / 255, self.targets[index]


def flip(item, generator):
    return (item[0].flip(2) if torch.rand((), generator=generator) < 0.5 else item[0]), item[1]


def data():
    return lab.Data(Folder(range(48)), Folder(range(48, 60)), 0.25, transform=flip, loader_workers=1)


def model():
    features = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*features, nn.Dropout(0.3), nn.Linear(32, 2))


study = lab.Study("images-folder", data, model, batch_size=8, epochs=2, runs=2)
