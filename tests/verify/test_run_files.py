"""A NaN that looks like poison counts as written where a kernel wrote it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.verify.cpu.run_files import WRITTEN_BY_KERNEL, RunFiles

BOUND = BoundOperation(
    name="f",
    dims={},
    tensors=(BoundTensor(name="out", dtype=DType.F32, shape=(3,), role="output"),),
    steps=(),
)


def test_a_nan_of_all_ones_is_poison_only_where_nothing_was_written(tmp_path: Path) -> None:
    run = RunFiles(tmp_path, tmp_path, BOUND, None)
    path = run.path(BOUND.tensors[0])
    np.array([0xFFFFFFFF, 0xFFFFFFFF, 0x3F800000], "u4").tofile(path)
    np.repeat(np.array([0, WRITTEN_BY_KERNEL, WRITTEN_BY_KERNEL], "u1"), 4).tofile(f"{path}.written")
    run.tell_numbers_from_poison()
    assert np.fromfile(path, "u4").tolist() == [0xFFFFFFFF, 0x7FFFFFFF, 0x3F800000]
