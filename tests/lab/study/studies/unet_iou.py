"""Segmentation with a small U-Net, compared by the mean intersection over union, which is to be maximised."""

import torch
from torch import nn

from contdrop import lab


def data():
    generator = torch.Generator().manual_seed(0)
    corners = torch.randint(0, 8, (60, 2, 1, 1), generator=generator)
    rows, columns = torch.arange(16)[:, None], torch.arange(16)
    inside = (rows >= corners[:, 0]) & (rows < corners[:, 0] + 8) & (columns >= corners[:, 1])
    images = inside[:, None] + 0.5 * torch.randn(60, 1, 16, 16, generator=generator)
    return lab.Data(train=(images, inside.long()), test=0.25, validation=0.2)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2))
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.output = nn.Conv2d(16, 2, 1)

    def forward(self, images):
        fine = self.down(images)
        return self.output(torch.cat([fine, self.up(self.middle(fine))], 1))


def overlaps(output, batch):
    predicted, truth = output.argmax(1).flatten(1), batch[1].flatten(1)
    both = [((predicted == k) & (truth == k)).sum(1) for k in (0, 1)]
    either = [((predicted == k) | (truth == k)).sum(1) for k in (0, 1)]
    return torch.stack(both + either, 1).float()


mean_iou = lab.Metric("mean IoU", overlaps, lambda m: float((m[:2] / m[2:]).mean()), better="higher")
study = lab.Study("unet-iou", data, UNet, metric=mean_iou, batch_size=16, epochs=2, runs=2)
