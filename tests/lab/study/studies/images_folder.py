"""Images in a folder, read one by one by loader workers, with augmentation that draws from the item's own generator."""

import tempfile

from PIL import Image
from torch import nn, rand, tensor, utils

from contdrop import lab

FOLDER = tempfile.TemporaryDirectory()


class Folder(utils.data.Dataset):
    def __init__(self, numbers):
        self.paths = [f"{FOLDER.name}/{number}.png" for number in numbers]
        for number, path in zip(numbers, self.paths):
            Image.new("RGB", (12, 12), (100 * (number % 2), 4 * number, 50)).save(path)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return tensor([*Image.open(self.paths[index]).getdata()]).T.reshape(3, 12, 12) / 255, index % 2


def flip(item, generator):
    return (item[0].flip(2) if rand((), generator=generator) < 0.5 else item[0]), item[1]


def data():
    return lab.Data(Folder(range(48)), Folder(range(48, 60)), 0.25, transform=flip, loader_workers=1)


def model():
    features = nn.Conv2d(3, 8, 3), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3)
    return nn.Sequential(*features, nn.Linear(32, 2))


study = lab.Study("images-folder", data, model, batch_size=8, epochs=2, runs=2)
