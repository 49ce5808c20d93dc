"""Published weights: read without executing anything, checked layer by layer, put into the lab's networks."""

from .loading import Assigned as Assigned
from .loading import assign as assign
from .loading import read as read
from .published import PUBLISHED as PUBLISHED
from .published import Pretrained as Pretrained
from .published import Published as Published
from .published import find as find
