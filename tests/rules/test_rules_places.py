"""Check that rules find by searches in the text what a walk over the tree finds."""

from __future__ import annotations

import re

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda.bounds.bounds import missing_bound_check
from kernel_lsp.rules.cuda.model import Function, read_function
from kernel_lsp.rules.cuda.nodes import LOOPS
from kernel_lsp.rules.cuda.outline import read_outline
from kernel_lsp.rules.cuda.variables import IDENTIFIER
from kernel_lsp.rules.registry import rules_of
from kernel_lsp.rules.rule import Check

BRANCHES = LOOPS | {"if_statement", "switch_statement", "conditional_expression"}
QUOTIENT = """
__global__ void gather(const float* __restrict__ x, float* __restrict__ out, int n, int width) {{
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i {} width];
}}
"""
NESTED = """
__global__ void nested(float* x, int n) {
    for (int i = 0; i < f(n); i += g(i)) {
        if (h(i)) x[i] = n > a(i) ? b(i) : c(n);
        else while (d(i)) { do { switch (e(i)) { case 1: x[i] = j(n); } } while (k(n)); }
    }
    l(n);
}
"""


def functions_of(text: str) -> list[Function]:
    file = read_outline(cuda.parse(text))
    return [f for definition in file.definitions if (f := read_function(definition, file)) is not None]


@pytest.mark.parametrize("text", [NESTED, *(rule.bad for rule in rules_of("cuda"))])
def test_branches_and_loops_around_a_call_are_those_of_the_tree(text: str) -> None:
    for function in functions_of(text):
        for call in function.calls:
            around = [node for node in function.around(call) if node.type in BRANCHES]
            assert list(function.branches_around(call)) == around
            assert function.loop_around(call) == next((node for node in around if node.type in LOOPS), None)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.b->c + d", ["a", "d"]),
        ("1.0f * x1 + 0xFFu", ["x1"]),
        ("block.thread_rank() + p.block_rankle", ["block", "thread_rank", "p"]),
        (".group_index", ["group_index"]),
        ("p->thread_rank", ["p"]),
    ],
)
def test_names_in_an_expression_are_those_that_are_no_fields(text: str, names: list[str]) -> None:
    assert IDENTIFIER.findall(text) == names


@pytest.mark.parametrize(("text", "may_find"), [("if sync", True), ("sync if", False), ("if", False), ("sync", False)])
def test_the_places_that_a_rule_needs_stand_one_behind_the_other(text: str, may_find: bool) -> None:
    check = Check(missing_bound_check.rule, missing_bound_check.hits, patterns=(re.compile("if"), re.compile("sync")))
    assert check.may_find_in(text) is may_find
