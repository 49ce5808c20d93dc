"""Scripts of the repository that no package holds, as modules."""

import importlib.util
import pathlib
from types import ModuleType

ROOT = pathlib.Path(__file__).parents[1]


def load(path: str) -> ModuleType:
    """A script by its path below the root of the repository."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
