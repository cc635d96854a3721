"""What a user can do wrong: told in one line."""


class SourceError(Exception):
    """There is nothing to read at a place that the user named."""


class StoryError(Exception):
    """There is no such thing in the logs, or it is named in no known way."""
