"""A vision transformer of timm on scikit-learn's digits.

Needs timm, and with it a torchvision that fits the installed torch.

contdrop compare examples/timm_vit.py
"""

import timm
import torch
from sklearn.datasets import load_digits

from contdrop import lab


def data():
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return lab.Data(train=(images, torch.tensor(y)), test=0.3, validation=0.2)


def model():
    size = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 48, "depth": 2, "num_heads": 4}
    return timm.models.VisionTransformer(**size, num_classes=10, drop_rate=0.1, proj_drop_rate=0.1, attn_drop_rate=0.1)


study = lab.Study("gallery-timm", data, model, batch_size=32, epochs=30, runs=6)
