"""The table of ATen operators: every rule has a row, and the rows agree with what torch says of its operators."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from kernel_lsp.core.operators import ROWS, TABLE, WORDS, is_a, number, row_of
from kernel_lsp.generate.lowering.table import supported_operators
from tests.generate.harness import check, tensor

PACKAGE = Path(__file__).parents[2] / "kernel_lsp"


def test_every_operator_with_a_rule_has_a_row() -> None:
    """`_foreach_add` is `add` for each tensor of a list."""
    missing = [name for name in supported_operators() if not row_of(name.replace("_foreach_", ""))]
    assert not missing, f"add a row to {PACKAGE / 'worker' / 'operators.json'}"


def test_every_word_of_a_row_is_declared_and_read_by_some_module() -> None:
    used = {word.split("=")[0] for words in ROWS.values() for word in words}
    assert used <= {*WORDS, *TABLE["numbers"]}
    assert {*TABLE["words"], *TABLE["numbers"]} <= used
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert [word for word in (*TABLE["words"], *TABLE["numbers"]) if f'"{word}"' not in text] == []


def test_what_torch_calls_pointwise_is_computed_elementwise() -> None:
    kinds = ("pointwise", "choice", "gated_gradient", "copy", "cast")
    assert [name for name in tagged(torch.Tag.pointwise) if not is_a(f"aten.{name}", *kinds)] == []


def test_what_torch_calls_random_is_no_function_of_its_inputs() -> None:
    random = {name for name in ROWS if is_a(f"aten.{name}", "random") and overloads(name)}
    assert random - set(tagged(torch.Tag.nondeterministic_seeded)) == set()


def test_a_view_aliases_its_argument() -> None:
    views = [name for name in ROWS if is_a(f"aten.{name}", "view") and name != "_unsafe_view"]
    assert [name for name in views if not aliases(name)] == []


def test_a_dim_is_where_the_schema_has_it() -> None:
    wrong = [name for name in ROWS if (at := number(f"aten.{name}", "dim")) is not None and at not in dims_of(name)]
    assert wrong == []


@pytest.mark.parametrize(
    ("op", "word", "expected"),
    [
        ("aten.add_.Tensor", "pointwise", True),
        ("aten::addmm", "biased", True),
        ("aten.div.Tensor_mode", "modular_by_mode", True),
        ("aten.div.Tensor", "modular_by_mode", False),
        ("silu.forward.default", "pointwise", False),
    ],
)
def test_a_row_is_found_by_operator_or_overload(op: str, word: str, expected: bool) -> None:
    assert is_a(op, word) == expected


def test_an_undeclared_word_is_an_error() -> None:
    with pytest.raises(KeyError, match="prodct"):
        is_a("aten.mm.default", "prodct")


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_every_unary_pointwise_operator_is_right_and_keeps_nan(part: int) -> None:
    """A new one needs no test of its own."""
    names = [name for name in ROWS if is_a(f"aten.{name}", "pointwise") and is_unary(name)]
    calls = ", ".join(f"torch.ops.aten.{name}(x)" for name in names[part::4])
    check(f"def f(x): return {calls}", inputs=[tensor("x", 6, 33)], families=("normal", "special_nan"))


def is_unary(name: str) -> bool:
    """Check whether the operator has a rule and returns one tensor for one floating tensor."""
    if f"aten.{name}" not in supported_operators():
        return False
    with suppress(RuntimeError, TypeError):
        return isinstance(getattr(torch.ops.aten, name)(torch.ones(2)), torch.Tensor)
    return False


def overloads(name: str) -> list[torch._ops.OpOverload]:
    packet = getattr(torch.ops.aten, name.split(".")[0], None)
    names = [] if packet is None else [n for n in packet.overloads() if not re.search("out|complex", n)]
    return [getattr(packet, n) for n in names if name.count(".") == 0 or name.split(".")[1] == n]


def tagged(tag: torch.Tag) -> list[str]:
    """Return the rows whose every overload has the tag: `max` of two tensors is pointwise, `max` along a dim is not."""
    found = {name: overloads(name) for name in ROWS}
    return [name for name, each in found.items() if each and all(tag in overload.tags for overload in each)]


def aliases(name: str) -> bool:
    found = overloads(name)
    return not found or any(r.alias_info is not None for overload in found for r in overload._schema.returns)


def dims_of(name: str) -> set[int]:
    arguments = [overload._schema.arguments for overload in overloads(name)]
    return {at for each in arguments for at, argument in enumerate(each) if argument.name == "dim"}


def test_arguments_may_have_the_names_of_operators() -> None:
    text = "def f(x, index, add): return (x[index] + x[index]) * add + index.unsqueeze(-1) - add"
    inputs = [tensor("x", 6, 8), tensor("index", 5, dtype="i64", within=(0, 5)), tensor("add", 5, 8)]
    check(text, inputs=inputs)
