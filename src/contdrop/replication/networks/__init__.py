"""The lab's networks."""

from .base import Model as Model
from .cnn import CNN as CNN
from .conv_local import ConvLocal as ConvLocal
from .mlp import MLP as MLP
from .nin import NIN as NIN
from .vgg import VGG as VGG
from .vgg import VGGHead as VGGHead
