"""Knobs of convolutions over windows, and when windows are the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernel_lsp.generate.codegen.kernel import RenderedKernel
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import WARP, TensorCoreSchedule
from kernel_lsp.generate.codegen.tensor_cores.window_products import LOCAL_NAMES, STAGES, WindowRenderer
from kernel_lsp.generate.codegen.tensor_cores.windows import PIECE, Windows, windows_of
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.schedule.knobs import Choices

TILES = {
    "128x64": (128, 64, 4),
    "128x32": (128, 32, 4),
    "128x128": (128, 128, 8),
    "256x64": (256, 64, 8),
    "128x96": (128, 96, 8),
    "256x32": (256, 32, 8),
}
"""Rows and columns of a block's tile, and the warps that multiply: as many copy. Two blocks of 4 warps share a
multiprocessor, so that one multiplies while the other one writes. The first tile whose columns divide the results' is
the default."""


def render_windows(
    choices: Choices,
    new_kernel: Callable[[str, Sequence[str]], KernelWriter],
    kernel: KernelWriter,
    group: ContractionGroup,
    captured: Callable[[Index], int],
    n_multiprocessors: int,
    written: str,
) -> tuple[RenderedKernel, ...]:
    """Return the kernels that stage weights and convolve over windows; none where another template is to be taken.
    `kernel` has no text yet."""
    picked = _pick_windows(choices, kernel.name, group, captured, n_multiprocessors)
    if picked is None:
        return ()
    kernel = replace(kernel, reserved=kernel.reserved | {*LOCAL_NAMES})
    renderer = WindowRenderer(kernel, group, picked[1], captured, picked[0])
    if not renderer.is_valid:
        return ()
    staging = renderer.staging(new_kernel(f"{kernel.name}_weights", LOCAL_NAMES))
    return staging, renderer.render(_comment(group, *picked, written))


def _pick_windows(
    choices: Choices, name: str, group: ContractionGroup, captured: Callable[[Index], int], n_multiprocessors: int
) -> tuple[Windows, TensorCoreSchedule] | None:
    """Read the knobs of a convolution over windows; None where the group is none, or another template is chosen."""
    windows, n_columns = windows_of(group), group.n.extent.constant
    if windows is None or n_columns is None or captured(windows.row.size) % PIECE:
        return None
    fitting = {name: tile for name, tile in TILES.items() if n_columns % tile[1] == 0}
    if not fitting:
        return None
    default, (tile_m, tile_n, _) = next(iter(fitting.items()))
    n_tiles = -(-captured(windows.n_places) // tile_m) * (n_columns // tile_n)
    is_default = int(n_tiles >= n_multiprocessors)
    tile = choices.pick(f"{name}.window_tile", tuple(fitting), default, "rows and columns of a block's tile")
    if not choices.pick_int(f"{name}.windows", (0, 1), is_default, "a window of the source for all taps along a row"):
        return None
    tile_m, tile_n, n_warps = fitting[str(tile)]
    n_products = windows.channels * windows.taps
    sizes = (tile_m, tile_n, n_products, n_warps, 1, STAGES, 1, n_products)
    return windows, TensorCoreSchedule(*sizes, uses_warpgroups=True, n_copying=n_warps * WARP)


def _comment(group: ContractionGroup, windows: Windows, schedule: TensorCoreSchedule, written: str) -> str:
    """Describe the kernel in its leading comment."""
    return (
        f"Each block computes a {schedule.tile_m} x {schedule.tile_n} tile of {group.tensor.name} on tensor cores:"
        f" three TF32 products stand for one of f32 (a = a_high + a_low, without a_low * b_low). It copies a window of"
        f" {windows.channels} channels for all {windows.row.n_taps} taps along a row, takes {schedule.tile_k} products"
        f" per step, and writes {written}."
    )
