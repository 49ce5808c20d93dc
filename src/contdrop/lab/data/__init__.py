"""Data sets: read, verified and split. Numpy only."""

from .dataset import Dataset as Dataset
from .location import directory as directory
from .registry import load as load
from .registry import names as names
from .split import Split as Split
