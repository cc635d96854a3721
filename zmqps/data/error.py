"""The one error of this package: data that cannot be used, and why."""


class DataError(ValueError):
    """A mistake in the user's data: names the place, what it holds and what was expected."""
