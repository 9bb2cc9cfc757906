"""The definition-use graph of a PTX function: provenance, and facts carried to a fixed point."""

from __future__ import annotations

import operator

import pytest

from kernel_lsp.toolchain.integrity.ptx_text import Function, Source, read_ptx

BODY = """
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r1, 256, %r2;
    ld.global.u32 %r4, [%rd1];
    add.s32 %r5, %r4, %r1;
    mov.u32 %r6, %r5;
    add.s32 %r6, %r6, %r7;
    mov.u32 %r7, %r6;
    mov.u32 %r8, 3;
"""


@pytest.mark.parametrize(
    ("register", "origins"),
    [
        ("%r2", {Source.THREAD}),
        ("%r3", {Source.THREAD, Source.BLOCK}),
        ("%r5", {Source.BLOCK, Source.LOADED, Source.LAUNCH}),
        ("%r8", set()),
    ],
)
def test_a_value_has_the_origins_of_all_that_it_is_computed_from(register: str, origins: set[Source]) -> None:
    function = kernel()
    assert function.provenance(function.definitions[register][0]) == origins


def test_facts_are_carried_through_copies_against_the_order_of_the_text() -> None:
    """%r7 is set below the statement that reads it, as at the end of a loop."""
    found = kernel().inferred(
        {"%r1": True}, lambda one, facts: any(n in facts for n in one.source_names) or None, operator.or_
    )
    assert {"%r3", "%r5", "%r6", "%r7"} <= set(found)
    assert not {"%r2", "%r4", "%r8"} & set(found)


def test_statements_behind_a_value_are_met_once() -> None:
    function = kernel()
    behind = list(function.behind(function.definitions["%r7"][0]))
    assert len(behind) == len(set(behind)) == 5


def kernel() -> Function:
    return read_ptx(f".visible .entry k()\n{{\n{BODY}\n}}\n").functions["k"]
