"""Occupancy, against values of NVIDIA's calculator."""

from __future__ import annotations

import pytest

from kernel_lsp.gpu.launch import occupancy
from kernel_lsp.gpu.specs import find_gpu

H200, A100, T4, RTX_3090, V100 = (
    find_gpu(name).architecture for name in ("H200", "A100 80GB", "T4", "RTX 3090", "V100")
)
KIB = 1024


def check(architecture: object, threads: int, registers: int, shared: int, blocks: int, limited_by: str) -> None:
    found = occupancy(
        architecture,  # type: ignore[arg-type]
        n_threads_per_block=threads,
        n_registers=registers,
        shared_bytes=shared,
    )
    assert (found.n_blocks, found.limited_by) == (blocks, limited_by)


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        (H200, 256, 32, 0, 8, "threads"),
        (H200, 256, 33, 0, 6, "registers"),  # 33 registers round up to 40 per thread: 48 warps
        (H200, 256, 64, 0, 4, "registers"),
        (H200, 256, 128, 0, 2, "registers"),
        (H200, 256, 255, 0, 1, "registers"),
        (H200, 1024, 64, 0, 1, "registers"),
        (H200, 32, 16, 0, 32, "blocks"),
        (H200, 128, 32, 48 * KIB, 4, "shared memory"),
        (H200, 128, 32, 227 * KIB, 1, "shared memory"),
        (A100, 128, 32, 100 * KIB, 1, "shared memory"),
        (A100, 128, 32, 163 * KIB, 1, "shared memory"),
        (A100, 96, 40, 0, 16, "registers"),
        (T4, 256, 32, 0, 4, "threads"),
        (T4, 64, 32, 32 * KIB, 2, "shared memory"),
        (RTX_3090, 256, 32, 0, 6, "threads"),
        (RTX_3090, 1024, 32, 0, 1, "threads"),
        (V100, 256, 32, 0, 8, "threads"),
        (V100, 256, 32, 48 * KIB, 2, "shared memory"),
    ],
)
def test_blocks_per_sm(
    architecture: object, threads: int, registers: int, shared: int, blocks: int, limited_by: str
) -> None:
    check(architecture, threads, registers, shared, blocks, limited_by)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "limited_by"),
    [
        (1025, 16, 0, "threads"),
        (32, 256, 0, "registers"),
        (1024, 72, 0, "registers"),
        (32, 16, 228 * KIB, "shared memory"),
    ],
)
def test_a_block_that_cannot_be_launched_has_none(threads: int, registers: int, shared: int, limited_by: str) -> None:
    check(H200, threads, registers, shared, 0, limited_by)


def test_the_fraction_is_of_the_warps_that_an_sm_can_hold() -> None:
    found = occupancy(H200, n_threads_per_block=96, n_registers=32, shared_bytes=0)
    assert (found.n_blocks, found.n_warps, found.fraction) == (21, 63, 63 / 64)


def test_a_block_without_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        occupancy(H200, n_threads_per_block=0, n_registers=32, shared_bytes=0)
