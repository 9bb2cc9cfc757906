"""Tensors whose elements 32 bits do not count are left to PyTorch."""

from __future__ import annotations

import pytest

from kernel_lsp.export.python.operation_text import countable
from kernel_lsp.plan.parser import parse_or_raise


def conditions(op: str, *directives: str) -> list[str]:
    lines = ["kernel-lsp: 1", f"op: {op}", *directives, "launch: k<<<1, 1>>>()"]
    plan = parse_or_raise("".join(f"// {line}\n" for line in lines), "k.cu")
    return [str(condition) for condition in countable(plan.forward)]


@pytest.mark.parametrize(
    ("op", "products"),
    [
        ("f(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])", ["B * D"]),
        ("f(x: f32[M, K], y: f32[K, N]) -> (out: f32[M, N])", ["M * K", "K * N", "M * N"]),
        ("f(x: f32[N, 4]) -> (out: f32[N])", ["N * 4"]),
        ("f(x: f32[N]) -> (out: f32[2 * N], total: f32[])", ["N", "2 * N"]),
        ("f(x: f32[8, 16]) -> (out: f32[])", []),
    ],
)
def test_a_tensor_of_unknown_size_has_a_limit_that_no_other_implies(op: str, products: list[str]) -> None:
    assert conditions(op) == [f"{product} <= 2130706432" for product in products]


def test_scratch_is_counted_too() -> None:
    assert conditions("f(x: f32[N]) -> (out: f32[N])", "scratch: all: f32[N, N]") == ["N * N <= 2130706432"]
