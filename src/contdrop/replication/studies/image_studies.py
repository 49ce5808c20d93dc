"""Tables V to VII: SVHN and NORB with locally connected layers and networks averaged, ILSVRC-2012 with VGG-16."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from ...lab.data.data import Data
from ...lab.study.study import Configuration, Size
from .. import datasets, pretrained
from ..augmentation import Affine, Crop, as_they_are
from ..datasets import first_here, ilsvrc
from ..networks import VGG, ConvLocal, VGGHead
from ..networks.models import dense_forward
from ..recipes import LayeredPlateau, Steps
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


@dataclass(frozen=True)
class Ilsvrc(Configuration):
    """ILSVRC-2012 in folders of JPEG files: random crops to train on, whole images to validate and test on.

    Attributes:
        name: Of its folder in the data directory.
        smaller: Pixels of the smaller side of an image.
        side: Of the crops.
        validation: How many training images are validated on.
        loader_workers: Processes that decode images.
        classes: How many there have to be: as many as the network was published with.
    """

    kind: ClassVar[str] = "ilsvrc"

    name: str = "ilsvrc"
    smaller: int = 256
    side: int = 224
    validation: int = 10_000
    loader_workers: int = 8
    classes: int = 1000

    def __call__(self) -> Data:
        folder = datasets.data_directory() / self.name
        train, test = ilsvrc.whole(folder, ilsvrc.SmallerSide(self.smaller))
        ilsvrc.check_number(train.classes, self.classes, folder)
        return Data(
            train=train,
            test=test,
            validation=self.validation,
            transform=Crop(self.side).draw,
            collate=as_they_are,
            loader_workers=self.loader_workers,
        )


@dataclass(frozen=True)
class VggMaps(Configuration):
    """Ten classes of ILSVRC-2012 as the frozen convolutions of VGG-16 see them: maps, of which crops are trained on.

    They are divided by their root mean square over the training images.

    Attributes:
        name: Of the data set.
        instead: Data sets that stand in for it where it is not here, the first of them that is; results say so.
        side: Of the crops.
        validation: How many training images are validated on.
    """

    kind: ClassVar[str] = "vgg-maps"

    name: str = "ilsvrc-10"
    instead: tuple[str, ...] = ("imagenette-subset", "ilsvrc-generated")
    side: int = 2
    validation: int = 40

    def __call__(self) -> Data:
        found = datasets.load(first_here((self.name, *self.instead)))
        train, test = common.scaled(*(pretrained.vgg_maps(found, part) for part in ("train", "test")))
        marks = [] if found.name == self.name else [found.title]
        marks += [] if pretrained.is_vgg_here() else ["convolutions of random weights, as published ones are not here"]
        return Data(
            train=(train, found.train_labels),
            test=(test, found.test_labels),
            validation=self.validation,
            transform=Crop(self.side).draw,
            name=found.name,
            mark="; ".join(marks),
        )


_QUICK: dict[str, Any] = {
    "title": "ten classes of ILSVRC-2012, frozen convolutions of VGG-16, two layers of 256 units with the method",
    "data": VggMaps(),
    "model": VGGHead(side=2, hidden=256, classes=10),
    **Steps(learning_rate=0.01, weight_decay=5e-4, every=0.5, batch_size=32).settings(),
    "epoch_steps": 20,
    "evaluation_batch_size": 100,
}

VGG16 = common.study(
    name="ilsvrc-vgg16",
    title="ILSVRC-2012, VGG-16 fine-tuned, both layers of 4096 units with the method",
    paper="Table VII",
    data=Ilsvrc(),
    model=pretrained.Pretrained(VGG(), "vgg16"),
    forward=dense_forward,
    metric=("error", "top5", "nll"),
    **Steps(learning_rate=1e-4, weight_decay=5e-4, every=0.5, batch_size=64).settings(),
    clip=35.0,
    epoch_steps=10_000,  # of 100,000 iterations
    # With sigma 0.3, alpha 1 and beta 0, as the paper has them on these data: nothing is selected.
    methods=common.METHODS,
    reference="gaussian",
    evaluation_batch_size=16,
    sizes={"paper": Size(runs=10, epochs=10), "quick": Size(runs=2, epochs=3, settings=_QUICK)},
    margin=0.3,
    margin_reason="a quarter of the gap between Gaussian and Bernoulli in the paper's Table VII, 25.79 and 26.99 %",
    notes=(
        "Training on crops of 224 pixels of images whose smaller side has 256, and their mirror images. Evaluation is "
        "dense: the fully connected layers see every window of the whole image, logits are averaged over windows and "
        "probabilities over the image and its mirror image. Biases have twice the rate and no weight decay, as Caffe's "
        "networks have it. An epoch is 10,000 iterations.",
        "The preset quick freezes the convolutions: their maps of 300 images of ten classes, 96 pixels wide, are "
        "computed once, and two hidden layers of 256 units learn from crops of them, at a rate of 0.01, for 60 "
        "iterations of 32. It has nothing in common with the paper's table but what is exercised.",
    ),
)
