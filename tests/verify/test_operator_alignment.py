"""Kernels are checked at the alignment that operators give them, and at no better one."""

from __future__ import annotations

from kernel_lsp.verify.model.cases import OFFSET_FAMILY, OPERATOR_ALIGNMENT_BYTES, Case
from kernel_lsp.verify.probes.probed_kernel import proposed
from kernel_lsp.verify.probes.table import TABLE
from kernel_lsp.worker.shipped import operator_launches
from tests.verify.kernels import kernel_of, task_of


def cases_of_a_check() -> list[Case]:
    return proposed(TABLE, kernel_of(task_of("N")), "plan")


def test_one_family_of_every_check_begins_off_a_page() -> None:
    cases = cases_of_a_check()
    moved = [case for case in cases if case.offset_bytes]
    assert [(case.family, case.offset_bytes) for case in moved] == [(OFFSET_FAMILY, OPERATOR_ALIGNMENT_BYTES)]
    assert moved[0].kind == "small_integers, 32 bytes off a page"


def test_inputs_are_anywhere_in_a_page_each_elsewhere_in_every_case() -> None:
    cases = [case for case in cases_of_a_check() if not case.offset_bytes]
    offsets = [case.offset_of(name) for case in cases for name in "xy" if not case.is_captured]
    assert all(0 <= offset < 4096 and offset % OPERATOR_ALIGNMENT_BYTES == 0 for offset in offsets)
    assert len(set(offsets)) > len(offsets) / 2
    assert cases[0].offset_of("x") == 0


def test_on_a_gpu_cases_of_the_same_sizes_come_to_the_same_places() -> None:
    cases = cases_of_a_check()
    others = [case for case in cases if not case.is_captured and not case.offset_bytes]
    places = {(case.sizes, name): case.device_offset_of(name) for case in others for name in "xy"}
    assert len(set(places.values())) > len(places) / 2
    assert all(case.device_offset_of("x") == places[case.sizes, "x"] for case in others)
    assert cases[0].device_offset_of("x") == 0


def test_operators_align_inputs_as_far_as_checks_do() -> None:
    assert operator_launches.VECTOR_BYTES == OPERATOR_ALIGNMENT_BYTES
