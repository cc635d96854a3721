"""The one error of this package."""


class ModelError(ValueError):
    """A model that cannot be built, or data that does not fit it. The message names the place."""
