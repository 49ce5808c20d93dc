"""What the package computes without one private part of torch after another; see _torch/test_private.py.

Reads names from the command line. torch is imported once; each name gets a fork of this process in which the package is
imported without it. Prints a JSON object for each.
"""

import json
import os
import sys
import warnings

import torch
import torch._decomp.decompositions_for_jvp  # once, and not in every fork; it may warn, of torch's own parts
import torch._dynamo


def numbers():
    """The outputs and gradients of every kind of layer, and of torch.func's transforms, as lists of numbers."""
    import contdrop as cd

    torch.manual_seed(1)
    x = torch.randn(4, 6, requires_grad=True)
    generator = torch.Generator().manual_seed(2)
    law = cd.parse_law("gaussian:sigma=0.3")
    layers = [
        cd.BernoulliDropout(0.5),
        cd.GaussianDropout(sigma=0.3),
        cd.GaussianDropout(sigma=0.3, generator=generator),
        cd.UniformDropout(activation="relu"),
        cd.UniformDropout(shared_axes=(1,)),
        cd.DropConnectLinear(6, 3, law=law),
        cd.DropConnectLinear(6, 3, law=law, masks="batch"),
        cd.FastDropoutLinear(6, 3, law=law),
        lambda x: cd.functional.adaptive_dropout(x, x),
    ]
    found = []
    # The fast path is connected once the native back end is in use, which takes a layer without gradients here: where
    # derivatives are missing, the reference back end is differentiated, and nothing else in here uses the native one.
    with torch.inference_mode():
        cd.functional.dropout(x, law)
    for layer in layers * 2:  # the second time by the fast path, which the first connects
        y = layer(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        found += [y, gradient]

    def loss(x):
        return (cd.functional.dropout(x, law) * cd.DropConnectLinear(6, 6, law=law)(x)).sum()

    transforms = [
        torch.func.grad(loss),
        lambda x: torch.func.jvp(loss, (x,), (torch.ones_like(x),))[1],
        torch.func.vmap(lambda row: cd.functional.dropout(row, law), randomness="different"),
        torch.func.vmap(lambda row: cd.functional.dropout(row, law), randomness="same"),
    ]
    for transform in transforms:
        torch.manual_seed(3)
        found.append(transform(x.detach()))
    # A tensor that stands for zeros has no memory to read from.
    found.append(cd.functional.dropout(torch._efficientzerotensor((3, 5)), law))
    return [value.detach().flatten().tolist() for value in found]


def compiled():
    """Whether a compiled function draws what an eager one draws, for two layers that must not share a mask."""
    import contdrop as cd

    def twice(x):
        return cd.functional.dropout(x, cd.Uniform()), cd.functional.dropout(x, cd.Uniform())

    results = []
    for function in (twice, torch.compile(twice, backend="aot_eager")):
        torch.manual_seed(1)
        results += function(torch.ones(5, 7))
    same = torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    return {"same": same, "shared": torch.equal(results[2], results[3])}


def theory():
    import contdrop as cd
    from contdrop.theory import propagation

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), cd.GaussianDropout(sigma=0.3), torch.nn.Dropout(0.5))
    torch.manual_seed(0)
    found = propagation.moments(model, torch.randn(4, 3, dtype=torch.float32))
    values = [found.mean, found.variance]

    class Refused(torch.nn.Module):
        def forward(self, x):
            return torch.sort(x)[0]

    try:
        propagation.moments(Refused(), torch.ones(2, 3))
        message = ""
    except NotImplementedError as error:
        message = str(error)
    return {
        "values": [value.detach().flatten().tolist() for value in values],
        "message": message,
        "predicted": list(cd.mc_predict(model, torch.ones(2, 3), samples=3, seed=1).mean.shape),
    }


def report(name):
    os.environ["CONTDROP_WITHOUT"] = name.removeprefix("compiled:")
    from contdrop._torch import private
    from contdrop.kernels import fast_path

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = {"numbers": numbers()}
    answer["warnings"] = sorted({str(warning.message) for warning in caught})
    answer["fast"] = fast_path.dropout is not fast_path._decline
    answer |= {ability: getattr(private, ability) for ability in ("SEES_EVERYBODY", "DERIVATIVES")}
    answer["DRAWS_IN_GRAPHS"] = private.DRAWS_IN_GRAPHS
    answer |= theory()
    if name.startswith("compiled:"):
        answer["compiled"] = compiled()
    return answer


for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        print(json.dumps({"name": name, **report(name)}), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(json.dumps({"name": name, "failed": True}), flush=True)
