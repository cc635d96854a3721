"""Waiting for the world outside: hosts have no event that a test could wait for."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Any

LOOK_S = 0.1


def until(condition: Callable[[], Any], seconds: float, what: str, look_s: float = LOOK_S) -> Any:
    """Look until the condition holds and answer what it said; else name what did not come."""
    end = monotonic() + seconds
    while not (answer := condition()):
        if monotonic() > end:
            raise TimeoutError(f"after {seconds} s it is not so that {what}")
        hold(look_s)
    return answer


def hold(seconds: float) -> None:
    """Let a fault last so long: its length is what the test is about."""
    Event().wait(seconds)
