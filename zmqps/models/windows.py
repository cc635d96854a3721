"""How a window moves along one axis of an image."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Windows:
    """`outputs` windows of `kernel` pixels, `stride` apart, over `size` pixels.

    The first starts `before` pixels ahead of the image. Pixels outside the image are zero.
    """

    size: int
    kernel: int
    stride: int
    before: int
    outputs: int

    @classmethod
    def over(
        cls, size: int, kernel: int, stride: int, padding: Literal["same", "valid"]
    ) -> "Windows":
        """Place whole windows only (valid), or ceil(size / stride) with zeros around (same)."""
        if padding == "valid":
            return cls(size, kernel, stride, 0, (size - kernel) // stride + 1)
        outputs = -(-size // stride)
        zeros = max((outputs - 1) * stride + kernel - size, 0)
        return cls(size, kernel, stride, zeros // 2, outputs)

    @property
    def after(self) -> int:
        """Pixels that the last window reaches beyond the image."""
        return max((self.outputs - 1) * self.stride + self.kernel - self.before - self.size, 0)

    def start(self, output: int) -> int:
        """First pixel of a window; it may lie ahead of the image."""
        return output * self.stride - self.before

    def reads(self, outputs: range) -> range:
        """Return the pixels of the image under these windows."""
        first, end = self.start(outputs.start), self.start(outputs.stop - 1) + self.kernel
        return range(min(max(first, 0), self.size - 1), max(min(end, self.size), 1))

    def part(self, outputs: range) -> "Windows":
        """Return these windows over the pixels that they read."""
        read = self.reads(outputs)
        before = read.start - self.start(outputs.start)
        return Windows(len(read), self.kernel, self.stride, before, len(outputs))
