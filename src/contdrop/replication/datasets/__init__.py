"""Data sets: read and verified. Numpy only."""

from .dataset import Dataset as Dataset
from .location import directory as directory
from .location import use_directory as use_directory
from .registry import load as load
from .registry import names as names
