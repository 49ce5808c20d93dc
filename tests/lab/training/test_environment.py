"""Devices of a machine, as a study asks for them."""

import pytest
import torch

from contdrop.errors import UserError
from contdrop.lab.training.environment import find_device


def test_a_device_that_is_not_there_is_told_with_what_to_do(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch, "zeros", refuse)
    message = "--device: 'cuda' does not work on this machine .*CUDA enabled.; auto takes the fastest device that does"
    with pytest.raises(UserError, match=message):
        find_device("cuda")
