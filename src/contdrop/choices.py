"""The words that an option may take: as types, for editors and type checkers, and as tuples, for the checks."""

from typing import Literal, get_args

Scale = Literal["inverted", "paper"]
Masks = Literal["example", "batch"]
MixtureMasks = Literal["fresh", "fixed"]
Inference = Literal["sampled", "analytic", "mean"]
Activation = Literal[None, "relu", "sigmoid"]
DropoutActivation = Literal[None, "relu"]
Transform = Literal[None, "softmax", "sigmoid", "probabilities"]
Method = Literal["monte-carlo", "moments"]
Covariance = Literal["diagonal", "output", "full"]

SCALES = get_args(Scale)
MASKS = get_args(Masks)
MIXTURE_MASKS = get_args(MixtureMasks)
INFERENCES = get_args(Inference)
ACTIVATIONS = get_args(Activation)
DROPOUT_ACTIVATIONS = get_args(DropoutActivation)
TRANSFORMS = get_args(Transform)
METHODS = get_args(Method)
