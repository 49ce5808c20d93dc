"""Augmentation: each change against a plain implementation of it, seeds, and the batches of a study."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from contdrop.lab.data.data import Data, prepare
from contdrop.replication.augmentation import Affine, Pixels

IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
NOTHING = Affine(scaling=0, degrees=0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def one(changes, image, seed=0):
    same, matrix, label = changes.draw((image, 7), generator(seed))
    assert same is image
    assert label == 7
    return changes.changed(image[None], matrix[None])[0]


def test_a_flip_mirrors_half_of_the_images():
    changes = dataclasses.replace(NOTHING, flip=True)
    flipped = 0
    for seed in range(200):
        found = one(changes, IMAGES[0], seed)
        is_flipped = torch.allclose(found, IMAGES[0].flip(2), atol=1e-5)
        assert is_flipped or torch.allclose(found, IMAGES[0], atol=1e-5)
        flipped += is_flipped
    assert 70 < flipped < 130  # 4 standard deviations


def test_crops_are_in_the_image_and_everywhere():
    changes = dataclasses.replace(NOTHING, side=28)
    rows = torch.arange(32.0).view(1, 32, 1).expand(1, 32, 32)
    columns = rows.transpose(1, 2)
    starts = []
    for seed in range(200):
        found = one(changes, torch.cat([rows, columns]), seed)
        assert found.shape == (2, 28, 28)
        top, left = float(found[0, 0, 0]), float(found[1, 0, 0])
        torch.testing.assert_close(found[0], (torch.arange(28.0) + top).view(28, 1).expand(28, 28), atol=1e-4, rtol=0)
        starts.append((top, left))
    starts = np.array(starts)
    assert starts.min() >= -1e-4
    assert starts.max() <= 4 + 1e-4
    assert np.abs(starts.mean(0) - 2).max() < 4 * 4 / np.sqrt(12 * 200)


def naive(image, matrix, side):
    """Pixel by pixel, between the four neighbours."""
    channels, height, width = image.shape
    found = torch.zeros(channels, side, side)
    for i in range(side):
        for j in range(side):
            x, y = (2 * j + 1) / side - 1, (2 * i + 1) / side - 1
            u, v = (float(row[0] * x + row[1] * y + row[2]) for row in matrix)
            column = min(max(((u + 1) * width - 1) / 2, 0), width - 1)
            row = min(max(((v + 1) * height - 1) / 2, 0), height - 1)
            top, left = int(row), int(column)
            down, right = min(top + 1, height - 1), min(left + 1, width - 1)
            a, b = row - top, column - left
            upper = image[:, top, left] * (1 - b) + image[:, top, right] * b
            lower = image[:, down, left] * (1 - b) + image[:, down, right] * b
            found[:, i, j] = upper * (1 - a) + lower * a
    return found


def test_all_together_against_loops():
    changes = Affine(side=14, flip=True)
    image = IMAGES[1, :, :16, :16].contiguous()
    for seed in range(3):
        _, matrix, _ = changes.draw((image, 0), generator(seed))
        found = changes.changed(image[None], matrix[None])[0]
        torch.testing.assert_close(found, naive(image, matrix, 14), atol=1e-4, rtol=0)


def test_scaling_and_rotation_are_those_drawn():
    """A line through the middle turns by the angle; distances shrink or grow by the factor."""
    changes = Affine()
    factors, angles = [], []
    for seed in range(300):
        _, matrix, _ = changes.draw((IMAGES[0], 0), generator(seed))
        inverse = np.linalg.inv(matrix[:, :2].double().numpy())
        factors.append(np.sqrt(abs(np.linalg.det(inverse))))
        angles.append(np.degrees(np.arctan2(inverse[1, 0], inverse[0, 0])))
    assert 0.85 <= min(factors) < 0.87
    assert 1.13 < max(factors) <= 1.15 + 1e-6
    assert -15 - 1e-4 <= min(angles) < -14
    assert 14 < max(angles) <= 15 + 1e-4


@pytest.mark.parametrize("divisor", [1.0, 16.0, 255.0])
def test_training_and_evaluation_divide_by_what_the_model_divides_by(divisor):
    model = nn.Sequential(nn.Sequential(Pixels(divisor), nn.Identity()))
    images = torch.randint(0, 17, (2, 3, 8, 8), dtype=torch.uint8)
    _, matrix, _ = NOTHING.draw((images[0], 0), generator())
    trained = NOTHING.forward(model, (images, torch.stack([matrix, matrix]), None))
    torch.testing.assert_close(trained, NOTHING.forward(model, (images, None)), atol=1e-4, rtol=0)


def test_in_a_study_all_methods_see_the_same_and_evaluation_the_middle():
    changes = Affine(side=28, flip=True)
    labels = torch.arange(4)
    data = Data(train=(IMAGES, labels), test=(IMAGES, labels), validation=(IMAGES, labels), transform=changes.draw)
    parts = prepare(data, task="classification").parts(0, "final", 0)
    order = parts.train.order(None, 4)

    def seen(seed):
        return changes.forward(nn.Identity(), next(parts.train.batches(order, seed=seed)))

    torch.testing.assert_close(seen(1), seen(1), atol=0, rtol=0)
    assert not torch.allclose(seen(1), seen(2))
    tested = changes.forward(nn.Identity(), next(parts.test.batches(parts.test.order(None, 4))))
    assert torch.equal(tested, IMAGES[:, :, 2:30, 2:30])
    pickle.dumps(data.transform)  # to another process


@pytest.mark.parametrize("draw", [1, 5])
def test_the_global_generator_is_left_alone(draw):
    torch.manual_seed(draw)
    before = torch.get_rng_state()
    one(Affine(side=28), IMAGES[0])
    assert torch.equal(before, torch.get_rng_state())
