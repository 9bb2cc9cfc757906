"""Views and rearrangements: none is a kernel of its own."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Operation, Scalar, index_value, rewrite, transformed
from tests.generate.harness import check, plan_text, tensor


@pytest.mark.parametrize(
    "call",
    [
        "x.transpose(1, 2) * 2",
        "x.permute(2, 0, 1).contiguous()",
        "x.reshape(x.shape[0], -1) + 1",
        "x[:, 1:, ::2] * 3",
        "x[:, -2:] + x[:, :2]",
        "x.flip(1) * 2",
        "torch.cat([x, x * 2, x[:, :1]], dim=1)",
        "torch.stack([x, -x], dim=1)",
        "F.pad(x, (1, 2, 3, 0), value=0.5)",
        "x.unsqueeze(1).expand(-1, 3, -1, -1) * 2",
        "x.roll(2, 1)",
        "x.repeat(1, 2, 1)",
        "x.select(1, -1) * 2",
        "torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)",
        "x.unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2)",
        "x.diagonal(dim1=1, dim2=2) * 2",
    ],
)
def test_rearrangements_fold_into_one_kernel(call: str) -> None:
    assert check(f"def f(x): return {call}", inputs=[tensor("x", 3, 6, 8)]).n_kernels == 1


@pytest.mark.parametrize("given", ["x.roll((2, -1), (1, 2))", "x[:, (torch.arange(48) * 5 + 1).remainder(48)]"])
def test_positions_that_are_arithmetic_are_in_no_memory(given: str) -> None:
    """A product reads each place several times: the shifts of Swin Transformer were kernels of their own."""
    text = f"def f(x, w): return {given}.flatten(0, 1) @ w"
    checked = check(text, inputs=[tensor("x", 2, 48, 64), tensor("w", 64, 32)])
    assert checked.n_kernels == 1
    assert "scratch:" not in checked.text


def test_reshape_with_symbolic_dims_keeps_plain_indices() -> None:
    checked = check(
        "def f(x): b, t, d = x.shape; return x.view(b, t, 4, d // 4).reshape(b * t, d) * 2",
        inputs=[tensor("x", 2, 5, 16)],
        sizes=({}, {"B": 3, "T": 7}),
    )
    assert "out[i] = x[i] * 2.0f;" in checked.text


def test_a_block_in_one_line_needs_no_divisions() -> None:
    checked = check(
        "def f(x): return x.permute(0, 3, 1, 2) * 2",
        inputs=[tensor("x", 2, 64, 80, 3)],
        sizes=({}, {"B": 1, "C": 5, "H": 4, "W": 7}),
    )
    assert "const int line = blockIdx.y;" in checked.text


def test_rotary_embedding_is_one_kernel() -> None:
    text = """
    def rotary(x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
        return x * cos + rotated * sin
    """
    inputs = [tensor("x", 2, 4, 6, 8), tensor("cos", 6, 8), tensor("sin", 6, 8)]
    assert check(text, symbol="rotary", inputs=inputs, backward=True).n_kernels == 1


def test_a_result_that_is_an_input_is_copied() -> None:
    check("def f(x): return x.view(-1), x", inputs=[tensor("x", 3, 5)])


LOOKUP = "def f(ids, w): return F.embedding(ids, w)"


def test_rows_of_a_table_are_copied_in_packs() -> None:
    inputs = [tensor("ids", 5, dtype="i64", within=(0, 7)), tensor("w", 7, 2048)]
    checked = check(LOOKUP, inputs=inputs, schedule={"f.vector": 4}, sizes=({}, {"N": 3, "D": 64}))
    assert "packs<4>(w)" in checked.text


def test_no_number_of_rows_is_too_large_for_a_grid() -> None:
    inputs = [tensor("ids", 1 << 15, dtype="i64", within=(0, 7)), tensor("w", 7, 2048)]
    assert "<<<dim3(N, " in plan_text(LOOKUP, inputs=inputs).render({})


def test_many_parts_are_found_by_a_tree_of_comparisons() -> None:
    """An output of a loop over time steps stacks as many parts as there are steps."""
    stacked, joined = "torch.stack([x * i for i in range(40)])", "torch.cat([x[:, : i % 3 + 1] for i in range(40)], 1)"
    text = f"def f(x): return {stacked}, {joined}"
    checked = check(text, inputs=[tensor("x", 3, 5)])
    assert max(line.count("?") for line in checked.text.splitlines()) <= 40


def test_a_deep_expression_is_rewritten_without_recursion() -> None:
    expression: Scalar = index_value(as_index(variable := Variable("i", 0, as_index(8))))
    for _ in range(5000):
        expression = Operation("bitwise_not", DType.I64, (expression,))
    replaced = rewrite(expression.substitute({variable: as_index(3)}), lambda access: access)
    assert not replaced.variables
    assert transformed(expression, lambda node: node) == expression


def test_a_lookup_of_rows_takes_small_blocks_by_default() -> None:
    inputs = [tensor("weight", 32000, 2048, dtype="bf16"), tensor("ids", 4, 2048, dtype="i64", within=(0, 31999))]
    assert ", 64>>>" in plan_text("def f(weight, ids): return F.embedding(ids, weight)", inputs=inputs).render({})


@pytest.mark.parametrize("offset", [0, 1, -2])
def test_the_gradient_of_a_diagonal_is_zero_beside_it(offset: int) -> None:
    check(f"def f(x): return x.diagonal({offset}, 1, 2) * 2", inputs=[tensor("x", 3, 7, 9)], backward=True)
