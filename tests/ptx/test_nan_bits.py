"""A NaN has the bits that a GPU's arithmetic gives it where something reads them, and its own where it is moved."""

from __future__ import annotations

import pytest

from kernel_lsp.ptx.analysis.kernel_traits import registers_read_as_bits
from tests.ptx.test_opcodes import N, run

OTHER_NAN, OF_A_GPU = 0x7FC00001, 0x7FFFFFFF
LOADED = "mov.b32 %f0, %x0;"
UPPER_HALF = "mov.b64 %d0, {%f0, %f1}; shr.u64 %d0, %d0, 32; cvt.u32.u64 %y, %d0;"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{LOADED} add.f32 %f1, %f0, %f0; mov.b32 %y, %f1;", OF_A_GPU),
        (f"{LOADED} fma.rn.f32 %f1, %f0, %f0, %f0; mov.f32 %f2, %f1; mov.b32 %y, %f2;", OF_A_GPU),
        (f"{LOADED} sqrt.rn.f32 %f1, %f0; neg.f32 %f2, %f1; mov.b32 %y, %f2;", OF_A_GPU),
        (f"{LOADED} neg.f32 %f1, %f0; mov.b32 %y, %f1;", OF_A_GPU),
        (
            f"{LOADED} mul.f32 %f1, %f0, %f0; mov.b64 %d0, {{%f0, %f1}}; shr.u64 %d0, %d0, 32; cvt.u32.u64 %y, %d0;",
            OF_A_GPU,
        ),
        (f"{LOADED} mov.f32 %f1, %f0; mov.b32 %y, %f1;", OTHER_NAN),
        (f"{LOADED} abs.f32 %f1, %f0; mov.b32 %y, %f1;", OTHER_NAN),
        ("add.f32 %t0, %x0, %x0; add.s32 %y, %t0, 0;", OF_A_GPU),
    ],
    ids=[
        "sum",
        "a copy of a sum",
        "its negative",
        "another negative",
        "half of a pair",
        "moved",
        "without its sign",
        "untyped registers",
    ],
)
def test_the_bits_of_a_nan(ptx, body: str, expected: int) -> None:
    assert set(run(ptx, body, [("b32", [OTHER_NAN] * N)], "b32")) == {expected}


def test_negatives_of_pairs_are_not_unwritten_memory(ptx) -> None:
    body = "neg.f16x2 %y, %x0;"
    pairs = [0x7FFF3C00, 0x3C007FFF, 0x7FFF7FFF, 0x80000000] * N
    assert run(ptx, body, [("b32", pairs[:N])], "b32")[:4] == [0x7FFFBC00, 0xBC007FFF, 0x7FFF7FFF, 0x00008000]


def test_infinities_that_meet_give_the_same_nan(ptx) -> None:
    body = f"{LOADED} neg.f32 %f1, %f0; add.f32 %f2, %f0, %f1; mov.b32 %y, %f2;"
    assert set(run(ptx, body, [("b32", [0x7F800000] * N)], "b32")) == {OF_A_GPU}


def test_numbers_keep_their_bits(ptx) -> None:
    numbers = [0x3F800000, 0x80000000, 1, 0x7F7FFFFF, 0xFF800000] * N
    body = f"{LOADED} mul.f32 %f1, %f0, 0f3F800000; mov.b32 %y, %f1;"
    assert run(ptx, body, [("b32", numbers[:N])], "b32") == numbers[:N]


def test_arithmetic_alone_reads_no_bits() -> None:
    assert registers_read_as_bits([]) == frozenset()
