"""Sizes of a depthwise convolution whose gradients one kernel computes by planes, and what fits shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Argument
from kernel_lsp.generate.ir.workload import Workload

KIND = "depthwise_gradients"
MAX_STATIC_BYTES = 48 * 1024
MAX_TAPS = 49
"""Maximum weights of a channel: a thread keeps them, their gradients and as many elements in registers."""
STRIPS = (1, 2, 4, 8, 16)
"""Strips of a plane that blocks share."""
MAX_THREADS = 256
CONVOLVED = Argument("convolved", DType.F32)
"""An element of the convolution's result, in the expression of its gradient."""


@dataclass(frozen=True)
class PlaneShape:
    """Sizes of a depthwise convolution by steps of 1. Tensors are (N, C, height, width); `out_height` and `out_width`
    are those of the result, `pad_h` and `pad_w` zeros on each side."""

    kernel_h: int
    kernel_w: int
    pad_h: int
    pad_w: int
    height: Index
    width: Index
    out_height: Index
    out_width: Index

    @property
    def n_taps(self) -> int:
        """Return the weights of a channel."""
        return self.kernel_h * self.kernel_w

    def rows_of(self, strips: int, height: int) -> tuple[int, int]:
        """Return the maximum rows of a block's input and of its gradients, zeros included, for planes of `height`."""
        share, halo = -(-height // strips), self.kernel_h - 1
        return (height + 2 * self.pad_h if strips == 1 else share + 2 * halo), share + halo

    def capacities(self, strips: int, workload: Workload) -> tuple[int, int]:
        """Return the elements in shared memory of the input and of the gradients at the captured sizes, in whole packs
        of four."""
        of_image, of_before = self.rows_of(strips, workload.size(self.height))
        width = workload.size(self.width)
        counts = (of_image * (width + 2 * self.pad_w), of_before * (width + self.kernel_w - 1))
        return -(-counts[0] // 4) * 4, -(-counts[1] // 4) * 4

    def static_bytes(self, strips: int, workload: Workload) -> int:
        """Return the shared memory of a block at the captured sizes."""
        return 4 * (sum(self.capacities(strips, workload)) + MAX_THREADS // 32 * (self.n_taps + 1))


def strips_of(shape: PlaneShape, workload: Workload) -> list[int]:
    """Return the numbers of strips whose rows fit shared memory at the captured sizes, the default first."""
    height = workload.size(shape.height)
    return [n for n in STRIPS if n <= height and shape.static_bytes(n, workload) <= MAX_STATIC_BYTES]
