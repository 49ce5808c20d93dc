"""Errors of usage, for tests of what is refused."""

import pytest

from contdrop.errors import UserError


def refusal(call, *arguments, kind=UserError, **options):
    """Call, and return the message of the error that is raised, which has to be a single line."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
