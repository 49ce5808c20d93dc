"""The torch.library namespace of the package's operators."""

import torch

LIBRARY = torch.library.Library("contdrop", "DEF")
