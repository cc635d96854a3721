"""How many bytes the answer to a fetch will have, from those before. Part of the broker."""

from collections.abc import Sequence
from typing import Any

from zmqps.protocol.messages import Fetch, Fetched


class Sizes:
    """Bytes of a row, by key; unknown ones count as nothing."""

    def __init__(self) -> None:
        self._row_bytes: dict[int, int] = {}

    def expected(self, body: Fetch) -> int:
        """Return the bytes of a fetch's answer, as far as the size of its rows is known."""
        known = self._row_bytes
        return sum(max(0, w.stop - w.start) * known.get(w.key, 0) for w in body.wants)

    def learn(self, body: Fetched, frames: Sequence[Any]) -> None:
        """Look at an answer: its header and its array frames."""
        for part, frame in zip(body.parts, frames[1:], strict=False):
            if part.key not in self._row_bytes and part.stop > part.start:
                self._row_bytes[part.key] = len(frame) // (part.stop - part.start)
