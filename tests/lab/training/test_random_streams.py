"""Which chance each part of training gets, seen from the batches and the generator themselves."""

import pytest
import torch
from test_trainer import images as images
from test_trainer import start

pytestmark = pytest.mark.usefixtures("one_thread")


def seeds_of_masks(images, method, epochs=2, **options):
    """What torch's generator was seeded with at the first batch of each epoch."""
    trained, seen = start(images, method, **options), []
    trained.network.register_forward_pre_hook(
        lambda network, _: seen.append(torch.initial_seed()) if network.training else None
    )
    found = []
    for _ in range(epochs):
        del seen[:]
        trained.run_epoch()
        assert len(set(seen)) == 1, "nothing seeds the generator within an epoch"
        found.append(seen[0])
    return found


def test_batches_of_every_epoch_are_in_an_order_of_their_own(images):
    seen = []

    def forward(model, batch):
        if model.training:
            seen.append(batch[0].flatten(1))
        return model(batch[0])

    trained = start(images, forward=forward)
    orders = []
    for _ in range(3):
        del seen[:]
        trained.run_epoch()
        orders.append(torch.cat(seen))
    everything = {tuple(row) for row in orders[0].tolist()}
    assert len(everything) == 80
    for order in orders:
        assert {tuple(row) for row in order.tolist()} == everything
    assert len({tuple(order.flatten().tolist()) for order in orders}) == 3


def test_masks_have_a_seed_for_every_method_run_and_epoch(images):
    """Else two methods would be dropped the same units, and errors would look more alike than they are."""
    base = {"methods": seeds_of_masks(images, "gaussian"), "same": seeds_of_masks(images, "gaussian")}
    assert base["methods"] == base["same"]
    others = [
        *seeds_of_masks(images, "uniform"),
        *seeds_of_masks(images, "bernoulli"),
        *seeds_of_masks(images, "gaussian:sigma=0.4"),
        *seeds_of_masks(images, "gaussian", run=1),
    ]
    assert len({*base["methods"], *others}) == 2 + len(others)
