"""Guards are put around the arrays of a thread, and nowhere else."""

from __future__ import annotations

import pytest

from kernel_lsp.source.local_arrays import with_guards

GUARD = "KernelLspGuard"


def body(*lines: str, head: str = "__global__ void k()") -> str:
    return head + " {\n" + "\n".join(lines) + "\n}\n"


def n_guards(*lines: str, head: str = "__global__ void k()") -> int:
    text = with_guards(body(*lines, head=head))
    return 0 if text is None else text.split("#line 1", 1)[1].count(GUARD)


@pytest.mark.parametrize(
    ("line", "n"),
    [
        ("float a[4];", 2),
        ("float a[4] = {}, b[2][3];", 3),
        ("alignas(16) const unsigned char a[4] = {1, 2};", 2),
        ("const float* a[4];", 2),
        ("for (int i = 0; i < 2; ++i) { int a[2]; }", 2),
        ("auto f = [](int i) { int a[2] = {}; return a[i]; };", 2),
        ("float a = 0;", 0),
        ("float (*a)[4] = nullptr;", 0),
        ("__shared__ float a[4];", 0),
        ("static float a[4];", 0),
        ("constexpr float a[2] = {1, 2};", 0),
        ("struct { float x; } a[2];", 0),
    ],
)
def test_each_array_has_one_on_both_sides(line: str, n: int) -> None:
    assert n_guards(line) == n


def test_a_function_for_the_compiler_has_none() -> None:
    assert n_guards("int a[2] = {}; return a[0];", head="__device__ constexpr int f()") == 0


def test_lines_stay_and_each_array_is_declared_as_it_was() -> None:
    text = body("volatile float a[2], // first", "    b[2] = {1,", "    2};", "a[0] = 1;")
    guarded = with_guards(text)
    assert guarded is not None
    after = guarded.split("#line 1\n", 1)[1]
    assert after.count("\n") == text.count("\n")
    assert after.split("\n")[4] == "a[0] = 1;"
    assert "volatile float a[2];" in after
    assert "volatile float  // first\n    b[2] = {1,\n    2};" in after
