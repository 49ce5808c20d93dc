"""Tables V and VI: SVHN and NORB, two convolutions, two locally connected layers, and five networks averaged."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...lab.data.augmentation import Affine
from ...lab.study.study import Size
from ..networks import ConvLocal
from ..recipes import LayeredPlateau
from . import common
from .common import Changed

_RECIPE = LayeredPlateau()


def _sizes(epochs: int, data: Changed, **quick: Any) -> dict[str, Size]:
    """Return the paper's size and a quick one on a part of the data, or of what stands in for them."""
    settings: dict[str, Any] = {
        "data": dataclasses.replace(data, **quick),
        **dataclasses.replace(_RECIPE, batch_size=16).settings(),
        "epoch_steps": 5,
        "networks": 2,
        "evaluation_batch_size": 100,
    }
    selection = common.SELECTION_RUNS
    return {
        "paper": Size(runs=30, epochs=epochs, selection_runs=selection),
        "quick": Size(runs=2, epochs=3, selection_runs=selection, selection_epochs=1, settings=settings),
    }


_NOTES = (
    "The error is that of the mean probabilities of five networks, which differ in initial weights, data order and "
    "masks, as in the paper; of two in the preset quick.",
    "The paper gives neither the number of epochs nor momentum, batch size and weight decay: the first is our choice, "
    "the others are those of cuda-convnet's layers-conv-local-11pct.",
    "The preset quick trains for 15 iterations and looks at some of the test images only: it shows that everything "
    "works, and nothing else.",
)

_SVHN_CHANGES = Affine(side=28, flip=True)
_SVHN_DATA = Changed("svhn-extra", _SVHN_CHANGES, validation=10_000)
SVHN = common.study(
    name="svhn-local",
    title="SVHN, two convolutions, two local layers, 512 ReLU units, networks averaged",
    paper="Table V",
    data=_SVHN_DATA,
    model=ConvLocal(),
    forward=_SVHN_CHANGES.forward,
    **_RECIPE.settings(),
    networks=5,
    methods=common.METHODS,
    **common.COMMON,
    sizes=_sizes(
        30, _SVHN_DATA, name="svhn", validation=150, train=400, test=300, instead=("svhn-subset", "svhn-generated")
    ),
    margin=0.02,
    margin_reason="less than a third of the gap between Gaussian and Bernoulli in the paper's Table V, 1.93 and 2.00 %",
    notes=_NOTES,
)

_NORB_CHANGES = Affine()
_NORB_DATA = Changed("norb", _NORB_CHANGES, validation=5_832)
NORB = SVHN.replace(
    name="norb-local",
    title="NORB, jittered and cluttered, two convolutions, two local layers, 512 ReLU units, networks averaged",
    paper="Table VI",
    data=_NORB_DATA,
    model=ConvLocal(image=(2, 48, 48), classes=6),
    forward=_NORB_CHANGES.forward,
    sizes=_sizes(100, _NORB_DATA, validation=120, train=320, test=240, instead=("norb-generated",)),
    margin=0.05,
    margin_reason="about a quarter of the gap between Gaussian and Bernoulli in the paper's Table VI, 3.15 and 3.33 %",
)
