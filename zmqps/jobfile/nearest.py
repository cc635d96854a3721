"""The nearest right spelling of a mistyped name."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice spelt most like `word` (case ignored), or None if none is near."""
    spelling = {choice.lower(): choice for choice in choices}
    found = get_close_matches(word[:100].lower(), spelling, n=1, cutoff=0.7)
    return spelling[found[0]] if found else None


def allowed(word: str, choices: Iterable[str]) -> str:
    """Say which names are allowed, and which one was probably meant."""
    names = list(choices)
    near = nearest(word, names)
    return (f"did you mean {near}? " if near else "") + "allowed: " + ", ".join(names)
