"""Mistakes of the user."""


class UserError(Exception):
    """Wrong usage or bad input. Its text is the one line that the user sees, and the exit code is 2."""
