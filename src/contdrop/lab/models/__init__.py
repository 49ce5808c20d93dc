"""The lab's networks."""

from .cnn import CNN as CNN
from .mlp import MLP as MLP
from .spec import Model as Model
