"""The parser reads what compilers print, and refuses the rest without an exception of its own."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.ptx.text.parser import parse
from kernel_lsp.ptx.text.syntax import (
    Address,
    Immediate,
    Instruction,
    Label,
    Module,
    Pair,
    Register,
    Symbol,
    UnsupportedPtxError,
    Vector,
)

MODULE = """
.version 9.0
.target sm_90
.address_size 64
.extern .func  (.param .b32 func_retval0) vprintf
(
    .param .b64 vprintf_param_0
)
;
.const .align 4 .b8 table[8] = {0, 0, 128, 63};
.global .align 8 .u64 pointer = table+4;
.extern .shared .align 16 .b8 dynamic[];
.visible .entry kernel(
    .param .u64 .ptr .global .align 4 kernel_param_0,
    .param .align 4 .b8 kernel_param_1[24]
)
.maxntid 64, 2, 1
{
    .reg .pred     %p<3>;
    .reg .b32     %r<5>;
    .reg .f32     %f<5>;
    .loc    1 9 0
    mov.u32     %r1, %tid.x; // a comment; with a semicolon
    @!%p1 ld.global.nc.v2.f32     {%f1, %f2}, [%rd1+-8];
    {
    .reg .b32 %temp;
    mov.b64     {%temp, %r2}, 0d3FF0000000000000;
    }
    shfl.sync.bfly.b32     %r3|%p2, %r1, 16, 31, -1;
    brx.idx     %r1, $table;
$table: .branchtargets $a, $b;
$a:
    ret;
$b:
    exit;
}
    .file    1 "/home/user/kernel.cu"
    .section    .debug_str
    {
$L__info_string0:
.b8 95,90,52,0
    }
"""


def statements() -> tuple[Instruction, ...]:
    kernel = parse(MODULE).functions["kernel"]
    return tuple(statement for statement in kernel.statements if isinstance(statement, Instruction))


def test_declarations_are_read():
    module = parse(MODULE)
    kernel = module.functions["kernel"]
    assert [(variable.name, variable.n_bytes) for variable in kernel.parameters] == [
        ("kernel_param_0", 8),
        ("kernel_param_1", 24),
    ]
    assert kernel.max_threads == 128
    assert kernel.branch_tables == {"$table": ("$a", "$b")}
    assert module.declared == {"vprintf"}
    assert module.files == {1: "/home/user/kernel.cu"}
    assert module.texts == {"$L__info_string0": "_Z4"}


def test_variables_have_their_initial_bytes():
    table, pointer, dynamic = parse(MODULE).variables
    assert (table.space, table.n_bytes, table.initial) == ("const", 8, bytes([0, 0, 128, 63]))
    assert [(offset, symbol.name, symbol.offset) for offset, symbol in pointer.references] == [(0, "table", 4)]
    assert dynamic.is_extern


def test_operands_are_read():
    move, load, unpack, shuffle, *_ = statements()
    assert move.operands == (Register("%r1"), Register("%tid.x"))
    assert load.operands == (Vector((Register("%f1"), Register("%f2"))), Address(Register("%rd1"), -8))
    assert load.guard is not None
    assert load.guard.is_negated
    assert unpack.operands[1] == Immediate(0x3FF0000000000000, 64)
    assert shuffle.operands[0] == Pair(Register("%r3"), Register("%p2"))
    assert shuffle.operands[4] == Immediate(-1)


def test_a_name_in_braces_is_another_register():
    unpack = statements()[2]
    assert isinstance(unpack.operands[0], Vector)
    inner = unpack.operands[0].elements[0]
    assert isinstance(inner, Register)
    assert inner.name not in ("%temp",)
    assert parse(MODULE).functions["kernel"].registers[inner.name] == "b32"


def test_the_text_of_an_instruction_is_kept_for_messages():
    assert statements()[1].text == "@!%p1 ld.global.nc.v2.f32 {%f1, %f2}, [%rd1+-8]"


@pytest.mark.parametrize("text", ["hello", "{", ".entry k(", ".visible .entry k() { add.s32 %r1, [-], 3; }", "\0"])
def test_text_that_is_not_ptx_is_refused(text):
    with pytest.raises(UnsupportedPtxError):
        parse(text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(MODULE)), st.integers(0, 40), st.text("{}()[];.,%$@!|:abc01 \n", max_size=8))
def test_damaged_ptx_gives_a_module_or_a_refusal(start, length, replacement):
    damaged = MODULE[:start] + replacement + MODULE[start + length :]
    with contextlib.suppress(UnsupportedPtxError):
        assert isinstance(parse(damaged), Module)


def test_a_label_in_braces_is_another_one_than_the_same_label_in_other_braces() -> None:
    wait = "{ .reg .pred ready; WAIT: setp.eq.u32 ready, %r1, 0; @ready bra DONE; bra.uni WAIT; DONE: }"
    module = parse(f".version 9.0\n.target sm_90\n.entry k() {{ .reg .b32 %r<2>; {wait} {wait} bra END; END: ret; }}")
    statements = module.functions["k"].statements
    labels = [statement.name for statement in statements if isinstance(statement, Label)]
    branches = [each.operands[0] for each in statements if isinstance(each, Instruction) and each.opcode == "bra"]
    assert len(set(labels)) == len(labels) == 5
    assert [branch.name for branch in branches if isinstance(branch, Symbol)] == [
        labels[1],
        labels[0],
        labels[3],
        labels[2],
        "END",
    ]
