"""Lean headers are chosen only where they mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.toolchain.extension.binding import PYTHON_VARIABLE, WRAPS
from kernel_lsp.toolchain.extension.headers import (
    ALL_OPERATORS,
    LIBRARY,
    OPERATORS,
    PYBIND11,
    TENSORS,
    WHOLE,
    headers_for,
    lean_text,
    may_lack_a_header,
)

FORWARD = (
    "#include <torch/extension.h>\ntorch::Tensor f(at::Tensor x) { return torch::empty_like(x, torch::kFloat32); }\n"
)


@pytest.fixture
def includes(tmp_path: Path) -> list[Path]:
    (tmp_path / "ATen" / "ops").mkdir(parents=True)
    (tmp_path / "ATen" / "ops" / "empty_like.h").touch()
    return [Path("/nowhere"), tmp_path]


def test_tensors_and_the_operators_that_are_named_come_first(includes: list[Path]) -> None:
    first, larger = headers_for(FORWARD, includes)
    assert (first.prelude, first.operators) == (TENSORS + PYBIND11, "#include <ATen/ops/empty_like.h>\n")
    assert "ATen/ops/empty_like.h" in first.lean
    assert larger == ALL_OPERATORS


def test_lean_headers_leave_out_what_costs_most() -> None:
    whole = "#pragma once\n#include <ATen/Context.h>\n#include <c10/core/Scalar.h>\n#include <ATen/ops/x_ops.h>\n"
    assert lean_text("ATen/ops/x.h", whole) == whole.replace("#include <ATen/Context.h>\n", "")
    assert "cusparse" not in lean_text("ATen/cuda/CUDAContext.h", "#include <cusparse.h>")


@pytest.mark.parametrize(
    "more",
    ["using torch::NoGradGuard;", "using namespace at;", "auto o = torch::TensorOptions().requires_grad(true);"],
)
def test_what_may_mean_something_else_gets_all_operators(more: str, includes: list[Path]) -> None:
    assert headers_for(FORWARD + more, includes) == (ALL_OPERATORS,)


def test_the_frontend_gets_everything(includes: list[Path]) -> None:
    assert headers_for(FORWARD + "torch::nn::Linear l(1, 2);", includes) == (WHOLE,)


def test_a_library_is_registered_with_its_header(includes: list[Path]) -> None:
    first, _ = headers_for(FORWARD + "TORCH_LIBRARY(x, m) {}", includes)
    assert first.operators.endswith(LIBRARY)


def test_includes_that_are_replaced_leave_their_line(includes: list[Path]) -> None:
    first, _ = headers_for(FORWARD, includes)
    assert first.without_replaced("#include <vector>\n  # include <torch/extension.h>\nint x;") == (
        "#include <vector>\n\nint x;"
    )
    assert WHOLE.without_replaced(FORWARD) == FORWARD
    assert "types.h" in OPERATORS


def test_functions_alone_are_bound_without_pybind11(includes: list[Path]) -> None:
    declared = includes[1] / PYTHON_VARIABLE
    declared.parent.mkdir(parents=True)
    declared.write_text(WRAPS[0])
    first, _ = headers_for(FORWARD, includes)
    assert first.prelude.endswith(TENSORS)
    assert "PYBIND11_MODULE" in first.prelude
    assert first.without_replaced("#include <pybind11/stl.h>\nint x;") == "\nint x;"
    other, _ = headers_for(FORWARD + 'm.def("f", &f, py::arg("x"));', includes)
    assert other.prelude == TENSORS + PYBIND11


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("host.cpp:1:1: error: 'matmul' was not declared in this scope", True),
        ("host.cpp:1:1: error: 'sum' is not a member of 'at'", True),
        ("host.cpp:1:1: error: expected ';' before '}' token", False),
    ],
)
def test_only_a_name_that_is_missing_asks_for_more(log: str, expected: bool) -> None:
    assert may_lack_a_header(log) is expected
