"""Large cases are compared at a sample of slices, along a dim that the code does not mix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.verify.oracle.arrays import map_array
from kernel_lsp.worker.oracle.sampling import _random_slices, _ranges
from tests.worker.capturing import capture_text, make_case, tensor

FROM_BYTES = 1 << 16
N_ROWS, N_COLUMNS = 1024, 80
"""5 times as many bytes."""


def sampled(body: str, folder: Path, n_rows: int = N_ROWS, **inputs: tuple[int, ...]) -> CaseFiles:
    """The files of a function of `x` and further inputs, of which a sample is allowed."""
    shapes: dict[str, Any] = {"x": (n_rows, N_COLUMNS), **inputs}
    taken = [tensor(name, *shape) for name, shape in shapes.items()]
    capture_text(f"def f({', '.join(shapes)}):\n    return {body}", "f", inputs=taken)
    return make_case("forward", shapes, "normal", folder, sample_from_bytes=FROM_BYTES)


def test_expected_results_are_those_of_slices_from_the_first_to_the_last(tmp_path: Path) -> None:
    files = sampled("x.softmax(-1)", tmp_path)
    assert files.slices is not None
    assert (files.slices.ranges[0][0], files.slices.ranges[-1][1]) == (0, N_ROWS)
    given, expected = files.inputs[0], files.outputs[0].reference
    assert (given.shape, expected.shape) == ((N_ROWS, N_COLUMNS), (files.slices.n, N_COLUMNS))
    assert 0 < files.slices.n < N_ROWS // 8
    assert files.slices.dims == {expected.name: 0}
    places = np.concatenate([np.arange(start, end) for start, end in files.slices.ranges])
    x = map_array(given.path, given.dtype, given.shape)[places].astype(np.float64)
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    found = map_array(expected.path, expected.dtype, expected.shape)
    np.testing.assert_allclose(found, exponentials / exponentials.sum(-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize(("n_whole", "n_slices"), [(16, 8), (24, 8), (64, 8), (100, 17), (9, 4), (7, 3), (5, 3)])
def test_some_seed_compares_each_slice_and_none_twice(n_whole: int, n_slices: int) -> None:
    """Slices that no seed compares would be known to whoever writes kernels."""
    seen: set[int] = set()
    for seed in range(400):
        ranges = _ranges(n_whole, n_slices, seed)
        places = [place for start, end in ranges for place in range(start, end)]
        assert places == sorted(set(places))
        assert places[0] == 0
        assert places[-1] == n_whole - 1
        seen.update(places)
    assert len(seen) == n_whole


def test_one_of_a_few_vast_slices_lies_at_a_random_place(tmp_path: Path) -> None:
    x = (16, 1 << 14)
    capture_text("def f(x):\n    return x.softmax(-1)", "f", inputs=[tensor("x", *x)])
    files = make_case("forward", {"x": x}, "normal", tmp_path, sample_from_bytes=FROM_BYTES)
    assert files.slices is not None
    (first, _), (middle, _), (last, _) = files.slices.ranges
    assert first == 0 < middle < last == 15


def test_operands_without_the_dim_are_taken_whole(tmp_path: Path) -> None:
    files = sampled("x @ w", tmp_path, w=(N_COLUMNS, 40))
    assert files.slices is not None
    assert set(files.slices.dims.values()) == {0}


MIXING = [
    "x - x.mean(0)",
    "x.cumsum(0)",
    "x.roll(1, 0)",
    "x * torch.arange(x.shape[0])[:, None]",
    "x / x.shape[0]",
    "x.flip(0)",
]


@pytest.mark.parametrize("body", [*MIXING, "(x - x.sum(1, keepdim=True)).cumsum(0)", "x / x.square().sum().sqrt()"])
def test_slices_of_what_mixes_rows_are_those_of_the_whole(body: str, tmp_path: Path) -> None:
    files = sampled(body, tmp_path)
    assert files.slices is not None
    [given], [expected], [dim] = files.inputs, (files.outputs[0].reference,), files.slices.dims.values()
    x = map_array(given.path, given.dtype, given.shape).astype(np.float64)
    whole = eval(body, {"x": torch.from_numpy(x), "torch": torch}).numpy()
    places = np.concatenate([np.arange(start, end) for start, end in files.slices.ranges])
    found = map_array(expected.path, expected.dtype, expected.shape)
    np.testing.assert_allclose(found, np.take(whole, places, axis=dim), rtol=1e-9, atol=1e-12)


def test_slices_are_tried_on_random_numbers_whatever_the_case_has() -> None:
    case_values = torch.full((9, 4), torch.nan, dtype=torch.float16)
    numbers = _random_slices(case_values, 0, 5, torch.Generator().manual_seed(1))
    assert (numbers.shape, numbers.dtype) == ((5, 4), torch.float16)
    assert bool((numbers > 0).all())
    assert len(set(numbers.sum(1).tolist())) == 5
    integers = torch.arange(36).view(9, 4)
    assert torch.equal(_random_slices(integers, 0, 5, torch.Generator()), integers[:5])


def test_an_eighth_of_the_outputs_is_compared_where_all_dims_are_mixed(tmp_path: Path) -> None:
    files = sampled("(x - x.sum(1, keepdim=True)).cumsum(0)", tmp_path)
    assert files.slices is not None
    assert (files.slices.n, set(files.slices.dims.values())) == (N_ROWS // 8, {0})
    assert (files.slices.ranges[0][0], files.slices.ranges[-1][1]) == (0, N_ROWS)


@pytest.mark.parametrize(("n_rows", "n_columns", "n_slices"), [(16, 12, 8), (24, 12, 8), (15, 12, None)])
def test_few_slices_of_what_mixes_all_dims_lie_between_the_first_and_the_last(
    n_rows: int, n_columns: int, n_slices: int | None, tmp_path: Path
) -> None:
    body = "(x - x.sum((1, 2), keepdim=True)).cumsum(0)"
    x = (n_rows, n_columns, 1024)
    capture_text(f"def f(x):\n    return {body}", "f", inputs=[tensor("x", *x)])
    files = make_case("forward", {"x": x}, "normal", tmp_path, sample_from_bytes=FROM_BYTES)
    slices = files.slices
    if n_slices is None:
        assert slices is None or slices.dims != {files.outputs[0].name: 0}
        return
    assert slices is not None
    assert (slices.n, len(slices.ranges), set(slices.dims.values())) == (n_slices, 8, {0})


def test_an_eighth_of_the_outputs_is_compared_where_all_sizes_are_fixed(tmp_path: Path) -> None:
    """A module whose parameters hold the batch has no symbols."""
    text = (
        f"import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.w = torch.nn.Parameter(torch.ones({N_ROWS}, {N_COLUMNS}))\n"
        f"    def forward(self, x):\n        return (x * self.w).softmax(-1)\n"
    )
    x = (N_ROWS, N_COLUMNS)
    capture_text(text, "M", inputs=[tensor("x", *x)])
    files = make_case("forward", {"x": x, "w": x}, "normal", tmp_path, sample_from_bytes=FROM_BYTES)
    assert files.slices is not None
    assert (files.slices.n, set(files.slices.dims.values())) == (N_ROWS // 8, {0})
    assert files.outputs[0].reference.shape == (N_ROWS // 8, N_COLUMNS)


def test_selections_from_what_mixes_all_dims_are_made_whole(tmp_path: Path) -> None:
    files = sampled("(x - x.sum()).cumsum(1).round().sort(0)", tmp_path)
    assert any(output.chosen for output in files.outputs)
    assert files.slices is None


def test_outputs_without_the_dims_are_made_whole(tmp_path: Path) -> None:
    assert sampled("x.square().mean()", tmp_path).slices is None


def test_small_cases_are_made_whole(tmp_path: Path) -> None:
    assert sampled("x.softmax(-1)", tmp_path, n_rows=100).slices is None
