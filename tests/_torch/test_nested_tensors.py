"""Nested tensors, jagged and strided, beside torch's own layers."""

import pytest
import torch

import conformance
import contdrop as cd
import contdrop.functional as F
from conformance import seeded

LAW = cd.Gaussian(sigma=0.3)
LENGTHS = [2, 5, 1]
LAYERS = {"nn.Linear": lambda: torch.nn.Linear(6, 4), **conformance.LAYERS}
del LAYERS["inplace"]  # torch does not copy into jagged tensors
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def components():
    torch.manual_seed(0)
    return [torch.randn(length, 6) for length in LENGTHS]


@pytest.fixture(params=[torch.jagged, torch.strided], ids=str)
def layout(request):
    return request.param


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_nested_tensor_is_its_packed_rows(make, training, layout):
    layer = make().train(training)
    parts = [part.requires_grad_() for part in components()]
    packed = torch.cat(components()).requires_grad_()
    nested = seeded(layer, torch.nested.as_nested_tensor(parts, layout=layout))
    expected = seeded(layer, packed)
    assert nested.is_nested
    assert nested.layout == layout
    result = torch.cat(nested.unbind())
    assert torch.allclose(result, expected, rtol=1e-6, atol=1e-7)
    gradients = torch.autograd.grad(result.square().sum(), parts)
    (whole,) = torch.autograd.grad(expected.square().sum(), packed)
    assert torch.allclose(torch.cat(gradients), whole, rtol=1e-5, atol=1e-6)


def test_a_residual_connection_of_jagged_tensors():
    x = torch.nested.nested_tensor(components(), layout=torch.jagged)
    y = x + cd.GaussianDropout(0.3)(x)
    assert y.shape == (x + torch.nn.Dropout(0.5)(x)).shape


def test_strided_components_that_differ_along_every_axis():
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 5)])
    parts = seeded(F.dropout, x, LAW).unbind()
    assert torch.equal(torch.cat([part.flatten() for part in parts]), seeded(F.dropout, torch.ones(26), LAW))


def test_axes_that_cannot_be_shared_get_one_clear_line(layout):
    x = torch.nested.nested_tensor(components(), layout=layout)
    with pytest.raises(ValueError, match=r"batch axis 0 and its ragged axis 1, got \(1,\)"):
        F.dropout(x, LAW, shared_axes=(1,))


def test_gates_of_other_components_are_refused(layout):
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    h, a = (torch.nested.nested_tensor(order, layout=layout) for order in (parts, parts[::-1]))
    with pytest.raises(ValueError, match="expected nested tensors of one layout with components of the same shapes"):
        F.adaptive_dropout(h, a)
    assert F.adaptive_dropout(h, h).is_nested
