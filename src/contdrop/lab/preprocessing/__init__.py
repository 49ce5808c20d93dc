"""What is done to images before they are trained on. Numpy only; a study's data function calls it."""

from .contrast import global_contrast as global_contrast
from .whitening import Whitening as Whitening
from .whitening import fit_whitening as fit_whitening
from .whitening import fitted_whitening as fitted_whitening
