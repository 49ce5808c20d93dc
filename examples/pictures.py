"""Script that draws the pictures of docs/gallery.md from full runs of all examples that can run here.

python examples/pictures.py [NAME ...]
"""

import pathlib
import sys
import tempfile

import torch

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.study import source

HERE = pathlib.Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
EXAMPLES = (
    "tabular_regression",
    "tabular_classification",
    "uncertainty",
    "text_encoder",
    "lightning_loop",
    "fashion_mnist",
    "cifar10_resnet",
    "timm_vit",
)


def draw(name: str, store: pathlib.Path) -> str:
    result = lab.compare(source.load_file(HERE / f"{name}.py"), store=store, workers=0, device="cpu", progress=False)
    figure = result.plot()
    figure.savefig(IMAGES / f"gallery-{name.replace('_', '-')}.png", dpi=90, metadata={"Software": None})
    return str(result)


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or EXAMPLES:
        with tempfile.TemporaryDirectory() as directory:
            try:
                print(f"{name}: {draw(name, pathlib.Path(directory) / 'runs.db')}\n", flush=True)
            except UserError as error:
                print(f"{name}: left out: {error}\n", flush=True)


if __name__ == "__main__":
    main()
