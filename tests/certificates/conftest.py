"""Fixtures of the tests of certificates."""

import pytest

import contdrop as cd
from architectures import trained


@pytest.fixture(autouse=True)
def _small_networks(one_thread):
    pass


@pytest.fixture
def model():
    return trained(cd.Gaussian(sigma=0.3))
