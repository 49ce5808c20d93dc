"""The lab's networks."""

from .conv_local import ConvLocal as ConvLocal
from .models import CNN as CNN
from .models import MLP as MLP
from .models import NIN as NIN
from .models import VGG as VGG
from .models import Model as Model
from .models import VGGHead as VGGHead
