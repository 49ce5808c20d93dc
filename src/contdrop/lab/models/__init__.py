"""The lab's networks."""

from .cnn import CNN as CNN
from .conv_local import ConvLocal as ConvLocal
from .mlp import MLP as MLP
from .spec import Model as Model
from .vgg import VGG as VGG
