"""Files of unusual shapes: the rules say the same of them, and take time in proportion."""

from __future__ import annotations

import time

import pytest

from kernel_lsp.rules import cuda, pytorch
from tests.rules.found_codes import ordered_cuda_codes as codes

HALVED = "__global__ void halve(float* __restrict__ x, int n) {{\n{}  if (n > 0) x[threadIdx.x] *= 0.5;\n}}\n"
GENEROUS_S = 5.0
"""Each of these took a tenth of it or less; before, seconds."""


def nested(depth: int) -> str:
    opened = "".join(f"if (n > {level}) {{\n" for level in range(depth))
    return f"__global__ void deep(float* __restrict__ x, int n) {{\n{opened}x[0] *= 0.5;\n{'}' * depth}\n}}\n"


def siblings(n: int) -> str:
    blocks = "".join("  { float a = x[threadIdx.x]; a += 1.0f; x[threadIdx.x] = a; }\n" for _ in range(n))
    return HALVED.format(blocks)


def atomics(n: int) -> str:
    lines = "".join(f"  if (threadIdx.x < {i}) {{ atomicAdd(&x[0], 1.0f); }}\n" for i in range(n))
    return HALVED.format(lines)


def long_sum(n: int) -> str:
    """Three times as many expressions in each other."""
    return HALVED.format("  x[0] = " + " + ".join(f"x[{i}]" for i in range(3 * n)) + ";\n")


def returns_behind_a_barrier(n: int) -> str:
    returns = "".join(f"  if (n > {i}) return;\n" for i in range(n))
    return HALVED.format(f"  __syncthreads();\n  int i = threadIdx.x;\n{returns}")


@pytest.mark.parametrize("shape", [nested, siblings, atomics, long_sum, returns_behind_a_barrier])
def test_time_grows_with_the_size_and_not_with_its_square(shape) -> None:
    text = shape(3000)
    start = time.process_time()
    cuda.check(text)
    assert time.process_time() - start < GENEROUS_S


def test_time_of_a_long_python_function_grows_with_its_size() -> None:
    steps = "".join(f"    total += model(x[{i}]).sum()\n" for i in range(5000))
    text = f"import torch\n\ndef train(model, x):\n    total = 0.0\n{steps}    return total.expand(4)\n"
    start = time.process_time()
    pytorch.check(text)
    assert time.process_time() - start < GENEROUS_S


def test_code_nested_deeper_than_parents_are_asked_for_is_checked_like_any_other() -> None:
    assert codes(nested(200)) == codes(nested(2))


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_long_table_changes_nothing_about_what_stands_behind_it(line_end: str) -> None:
    rows = line_end.join("  0.5, 1.25e-3f, -0x1F, 'a', 7u," for _ in range(400)).replace("'a'", "12'000")
    table = f"__constant__ float table[] = {{{line_end}{rows}{line_end}}};{line_end}"
    kernel = HALVED.format("").replace("\n", line_end)
    (alone,), (behind,) = cuda.check(kernel), cuda.check(table + kernel)
    n_lines = table.count("\n")
    assert (behind.code, behind.range.start_line) == (alone.code, alone.range.start_line + n_lines)
    assert behind.range.start_column == alone.range.start_column


def test_code_that_only_looks_like_a_table_is_read() -> None:
    called = "  f(" + "abc, " * 2000 + "0);\n"
    assert codes(HALVED.format(called)) == codes(HALVED.format(""))


def test_a_name_means_the_innermost_variable_that_is_declared_so_far() -> None:
    inner = (
        "__global__ void k(float* __restrict__ x, size_t n) {\n  { int n = 3; for (int i = 0; i < n; ++i) x[i] = 0; }\n"
    )
    assert "KL216" not in codes(inner + "}\n")
    assert "KL216" in codes(inner + "  for (int i = 0; i < n; ++i) x[i] = 0;\n}\n")


def test_a_long_chain_of_branches_does_not_find_the_parents_of_each_anew() -> None:
    head = "__global__ void k(const float* x, float* y, int n) {\n  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    chain = "".join(f"  else if (i < n - {step}) {{ y[i] += x[i]; }}\n" for step in range(1, 300))
    start = time.process_time()
    cuda.check(f"{head}  if (i < n) {{ y[i] = 0; }}\n{chain}}}\n")
    assert time.process_time() - start < GENEROUS_S
