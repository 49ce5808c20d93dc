"""A batch that is divided: every part draws its rows of the masks, whatever the layer."""

import pytest
import torch
from torch import nn

import contdrop as cd
import contdrop.functional as F
from conformance import OPEN, fixed, seeded
from contdrop._torch import sharding

CUTS = [(0, 1), (1, 4), (4, 7)]  # of seven examples
X = fixed(7, 6, 5, 4).double()


LAYERS = {
    "gaussian": cd.GaussianDropout(0.3),
    "feature maps": cd.BernoulliDropout(0.3, shared_axes=(2, 3)),
    "one mask for all": cd.UniformDropout(shared_axes=(0,)),
    "own law": cd.Dropout(OPEN, shared_axes=(1,)),
    "adaptive": lambda x: F.adaptive_dropout(x, x),
    "dropconnect": cd.DropConnectLinear(4, 3, mask_bias=True).double(),
    "dropconnect, own law": cd.DropConnectLinear(4, 3, law=OPEN).double(),
    "dropconnect, one mask": cd.DropConnectLinear(4, 3, masks="batch", mask_bias=True).double(),
    "fast": cd.FastDropoutLinear(4, 3, law=cd.Bernoulli(keep=0.5)).double(),
    "torch's": nn.Dropout(0.3),
    "torch's of feature maps": nn.Dropout2d(0.3),
    "torch's alpha": nn.AlphaDropout(0.3),
    "torch's, channels last": lambda x: nn.functional.dropout(x.to(memory_format=torch.channels_last), 0.3),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "folded": lambda x: F.dropout(x.flatten(0, 1), cd.Uniform()).unflatten(0, x.shape[:2]),
    "two": nn.Sequential(nn.Dropout(0.5), cd.GaussianDropout(0.3), nn.Dropout(0.5)),
}


def output_and_gradient(layer, x):
    x = x.clone().requires_grad_()
    y = seeded(layer, x)
    y.square().sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_the_parts_of_a_batch_draw_the_rows_of_its_masks(layer):
    parts = []
    for first, stop in CUTS:
        with sharding.of_batch(first, stop - first, len(X)):
            parts.append(output_and_gradient(layer, X[first:stop]))
    for whole, pieces in zip(output_and_gradient(layer, X), zip(*parts)):
        torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_divided_is_refused():
    with sharding.of_batch(0, 2, 4):
        with pytest.raises(ValueError, match="expected the 2 examples of this one along the first axis, got shape"):
            F.dropout(torch.ones(3, 5), cd.Uniform())
        with pytest.raises(ValueError, match="draws random numbers that cannot be divided"):
            torch.randn(2, 5)
        nn.functional.scaled_dot_product_attention(X[:2], X[:2], X[:2])  # may draw, and does not
    assert sharding.window((3, 5)) == []
