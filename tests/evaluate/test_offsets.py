"""Kernels are checked at the alignment that operators give them, and at no better one."""

from __future__ import annotations

from kernel_lsp.evaluate.cases import OFFSET_FAMILY, OPERATOR_ALIGNMENT_BYTES, full_cases
from kernel_lsp.worker import operator_launches


def test_one_family_of_every_check_begins_off_a_page() -> None:
    cases = full_cases("forward", [{"N": 7}, {"N": 1031}], {"N": 4096}, seed=0)
    moved = [case for case in cases if case.offset_bytes]
    assert [(case.family, case.offset_bytes) for case in moved] == [(OFFSET_FAMILY, OPERATOR_ALIGNMENT_BYTES)]
    assert moved[0].kind == "small_integers, 16 bytes off a page"


def test_operators_align_inputs_as_far_as_checks_do() -> None:
    assert operator_launches.VECTOR_BYTES == OPERATOR_ALIGNMENT_BYTES
