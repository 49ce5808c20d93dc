"""Several processes: data parallel, DTensor and sequence parallelism, with two processes on this machine."""

import os
import pathlib
import tempfile

import pytest
import torch
import torch.distributed.device_mesh
import torch.multiprocessing

import contdrop as cd
import contdrop.functional as F
from conformance import LAYERS, seeded

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="torch without gloo"
)


class _Own(cd.Law):
    """Uniform, in plain torch."""

    mean, variance = 0.5, 1 / 12

    def quantile(self, u):
        return u


def _enter(rank, body, directory):
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    meeting = pathlib.Path(directory, "meeting").as_uri()  # no port, which other tests may take meanwhile
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.save(body(rank), f"{directory}/{rank}")
    torch.distributed.barrier()  # neither leaves while the other one still talks to it
    # A process that ends in the ordinary way is now and then aborted by a thread of gloo's that is still there.
    os._exit(0)


def in_two_processes(body):
    """What body(rank) gives in each of two processes."""
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(_enter, (body, directory), nprocs=2)
        return [torch.load(f"{directory}/{rank}") for rank in (0, 1)]


# Data parallel.


def _data_parallel(rank):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), cd.GaussianDropout(0.3), torch.nn.Dropout(0.5))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias.zero_()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(7)
    same = [model[1](torch.ones(50)), model[2](torch.ones(50))]
    parallel(torch.ones(8, 4)).sum().backward()
    torch.manual_seed(7 + torch.distributed.get_rank())  # the one line of the guide
    return [*same, model[1](torch.ones(50)), model[2](torch.ones(50)), model[0].weight.grad]


def test_the_same_seed_gives_the_same_masks_on_every_rank():
    first, second = in_two_processes(_data_parallel)
    for place, equal in enumerate([True, True, False, False, True]):  # ours and torch's alike; gradients are averaged
        assert torch.equal(first[place], second[place]) == equal, place


# DTensor.


def _whole(rank, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


SHARDED = LAYERS | {
    "one mask for all": lambda: cd.UniformDropout(shared_axes=(0,)),
    "own law": lambda: cd.Dropout(_Own(), shared_axes=(1,)),
    "dropconnect, own law": lambda: cd.DropConnectLinear(6, 4, law=_Own()),
    "dropconnect, masked bias": lambda: cd.DropConnectLinear(6, 4, mask_bias=True),
}


def _sharded(rank):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    results = {}
    for name, make in SHARDED.items():
        layer = seeded(make)
        x = _whole(rank, 5, 6).requires_grad_()  # five rows: the shards are not equal
        expected = seeded(layer, x * 1)  # a copy for the layer that works in place
        gradients = torch.autograd.grad(expected.square().sum(), [x, *layer.parameters()])
        distribute_module(layer, mesh)
        for placement in (Shard(0), Shard(1), Replicate()):
            sharded = distribute_tensor(_whole(rank, 5, 6), mesh, [placement]).requires_grad_()
            y = seeded(layer, sharded * 1)
            assert isinstance(y, DTensor)
            if not list(layer.parameters()):
                assert y.placements == sharded.placements
            # torch 2.6 takes wrong gradients of a square of partial sums.
            whole = y.redistribute(placements=[Replicate()])
            found = torch.autograd.grad(whole.square().sum(), [sharded, *layer.parameters()])
            pairs = zip([y, *found], [expected, *gradients])
            results[f"{name} {placement}"] = max((a.full_tensor() - b).abs().max().item() for a, b in pairs)
    return results


def test_the_mask_of_a_shard_is_the_slice_of_the_mask_of_the_whole():
    for results in in_two_processes(_sharded):
        assert len(results) == 3 * len(SHARDED)
        # Sums in another order differ by rounding; a wrong mask value would differ by tenths.
        assert {name: error for name, error in results.items() if error > 2e-5} == {}


def _beside_plain_tensors(rank):
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    plain = _whole(rank, 4, 6)
    sharded = distribute_tensor(plain, mesh, [Shard(0)])
    messages = []
    for call in (lambda: F.adaptive_dropout(sharded, plain), lambda: F.dropconnect_linear(sharded, plain)):
        with pytest.raises(RuntimeError) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_a_plain_tensor_beside_a_sharded_one_gets_one_clear_line():
    expected = (
        "dropout: expected DTensors only, or none, got Tensor of shape (4, 6) beside one; "
        "torch.distributed.tensor.distribute_tensor makes a DTensor of it"
    )
    assert in_two_processes(_beside_plain_tensors) == [[expected] * 2] * 2


def _sequence_parallel(rank):
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    results = []
    for dropout in (cd.GaussianDropout(0.3), torch.nn.Dropout(0.5)):
        block = torch.nn.Sequential(torch.nn.LayerNorm(6), dropout)
        x = _whole(rank, 3, 8, 6)  # batch, sequence, features: SequenceParallel shards axis 1
        expected = seeded(block, x)
        parallelize_module(block, mesh, {"0": SequenceParallel(), "1": SequenceParallel()})
        y = seeded(block, distribute_tensor(x, mesh, [Shard(1)]))
        assert isinstance(y, DTensor)
        assert y.to_local().shape == (3, 4, 6)
        results.append((y.full_tensor() - expected).abs().max().item())
    return results


def test_sequence_parallelism():
    for ours, _ in in_two_processes(_sequence_parallel):
        assert ours < 1e-6
