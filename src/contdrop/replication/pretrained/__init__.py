"""Published weights: read without executing anything, checked layer by layer, put into the lab's networks."""

from .published import PUBLISHED as PUBLISHED
from .published import Pretrained as Pretrained
from .published import Published as Published
from .published import find as find
from .weight_files import Assigned as Assigned
from .weight_files import assign as assign
from .weight_files import read as read
