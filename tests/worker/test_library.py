"""Library steps on files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.errors import TargetError
from kernel_lsp.process.case_files import CaseTensor
from kernel_lsp.process.worker_client import Worker
from tests.worker.capturing import with_worker


def on_disk(folder: Path, name: str, values: np.ndarray) -> CaseTensor:
    path = folder / f"{name}.bin"
    values.astype(np.float32).tofile(path)
    return CaseTensor(name, path, DType.F32, values.shape)


def run(function: str, arguments: list[Any], tensors: list[CaseTensor], results: list[CaseTensor]) -> None:
    async def action(worker: Worker) -> None:
        await worker.run_library(function, arguments, tensors=tensors, results=results)

    with_worker(action)


def read(tensor: CaseTensor) -> np.ndarray:
    return np.fromfile(tensor.path, dtype=np.float32).reshape(tensor.shape)


def test_a_product_of_matrices(tmp_path: Path) -> None:
    a, b = np.random.default_rng(1).normal(size=(4, 8)), np.random.default_rng(2).normal(size=(8, 5))
    result = CaseTensor("c", tmp_path / "c.bin", DType.F32, (4, 5))
    tensors = [on_disk(tmp_path, "a", a), on_disk(tmp_path, "b", b)]
    run("aten::mm", [{"tensor": "a"}, {"tensor": "b"}], tensors, [result])
    np.testing.assert_allclose(read(result), a @ b, rtol=1e-5, atol=1e-5)


def test_a_convolution_with_lists_and_none(tmp_path: Path) -> None:
    x, w = np.ones((1, 2, 4, 4)), np.ones((3, 2, 3, 3))
    result = CaseTensor("y", tmp_path / "y.bin", DType.F32, (1, 3, 2, 2))
    arguments = [{"tensor": "x"}, {"tensor": "w"}, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    run("aten::convolution", arguments, [on_disk(tmp_path, "x", x), on_disk(tmp_path, "w", w)], [result])
    np.testing.assert_array_equal(read(result), np.full((1, 3, 2, 2), 18))


def test_the_backward_of_a_convolution_has_three_results(tmp_path: Path) -> None:
    grad, x, w = np.ones((1, 3, 2, 2)), np.ones((1, 2, 4, 4)), np.ones((3, 2, 3, 3))
    tensors = [on_disk(tmp_path, "g", grad), on_disk(tmp_path, "x", x), on_disk(tmp_path, "w", w)]
    shapes = {"gx": (1, 2, 4, 4), "gw": (3, 2, 3, 3), "gb": (3,)}
    results = [CaseTensor(name, tmp_path / f"{name}.bin", DType.F32, shape) for name, shape in shapes.items()]
    operands = [{"tensor": name} for name in "gxw"]
    arguments = [*operands, [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]]
    run("aten::convolution_backward", arguments, tensors, results)
    np.testing.assert_array_equal(read(results[2]), [4, 4, 4])


def test_any_other_function_is_refused(tmp_path: Path) -> None:
    for function in ("aten::softmax", "mm", "torch::save", "aten::__init__"):
        with pytest.raises(TargetError, match="not a library function"):
            run(function, [], [], [])


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    a = on_disk(tmp_path, "a", np.ones((4, 8)))
    result = CaseTensor("c", tmp_path / "c.bin", DType.F32, (4, 4))
    with pytest.raises(TargetError, match="aten::mm refuses its arguments"):
        run("aten::mm", [{"tensor": "a"}, {"tensor": "a"}], [a], [result])


def test_a_result_declared_with_another_shape_is_refused(tmp_path: Path) -> None:
    a = on_disk(tmp_path, "a", np.ones((4, 4)))
    result = CaseTensor("c", tmp_path / "c.bin", DType.F32, (4, 5))
    with pytest.raises(TargetError, match=r"gives shape \[4, 4\] for 'c', declared \[4, 5\]"):
        run("aten::mm", [{"tensor": "a"}, {"tensor": "a"}], [a], [result])
