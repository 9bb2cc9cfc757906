"""The ledger's record is what the pipeline proposes, and a difference from it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.corpora import read_kernels
from tests.ledger.entry import Entry, Run, differences, entry_of, printed, read
from tests.ledger.recorder import recorded
from tests.ledger.verdicts import comparable

FOLDER = Path(__file__).parent
BENIGN = FOLDER.parent / "benign"
RUN = Run("forward", "program", "sm_90", "B=2 D=3", "normal/reverse")
LATER = replace(RUN, sizes="B=10 D=3")


def entry(*runs: Run) -> Entry:
    return entry_of("k.cu", "tasks.py::f", "correct", runs, ())


def check(before: Entry, after: Entry, *told: str) -> None:
    """Check that these lines tell what differs, behind the kernel's name."""
    assert list(differences([before], [after])) == (["k.cu", *told] if told else [])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("corpus", "name"), [("attacks", "number_by_half_precision.cu"), ("benign", "double_accumulation.cu")]
)
async def test_what_is_proposed_today_is_recorded(corpus: str, name: str) -> None:
    kernels = [kernel for kernel in read_kernels(FOLDER.parent / corpus) if kernel.file.name == name]
    (found,) = [entry async for entries in recorded(kernels) for entry in entries]
    kept = [entry for entry in read((FOLDER / f"{corpus}.txt").read_text()) if entry.name == name]
    assert list(differences(kept, [found])) == []
    assert any("normal/reverse" in line for line in found.lines)


@pytest.mark.timeout(300)
async def test_an_error_while_a_task_is_captured_is_the_entry_of_its_kernel_alone(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("import os\nos._exit(1)\n" + (BENIGN / "tasks.py").read_text())
    one, *_ = (each for each in read_kernels(BENIGN) if each.file.name == "double_accumulation.cu")
    broken = replace(one, file=tmp_path / "broken.cu")
    missing = replace(one, file=tmp_path / "empty" / "missing.cu")
    found = [entry async for entries in recorded([broken, missing, one]) for entry in entries]
    told = {entry.name: entry.lines[1].split()[1] for entry in found}
    assert told == {"broken.cu": "raised", "missing.cu": "raised", one.file.name: "correct"}


@pytest.mark.parametrize("corpus", ["attacks", "benign"])
def test_the_record_has_every_kernel(corpus: str) -> None:
    kept = [entry.name for entry in read((FOLDER / f"{corpus}.txt").read_text())]
    assert kept == sorted(kernel.file.name for kernel in read_kernels(FOLDER.parent / corpus))


def test_what_was_printed_is_read_again() -> None:
    entries = [entry(RUN, LATER), Entry("a.cu", ("outcome: rejected",))]
    assert read(printed(entries)) == entries[::-1]


def test_the_same_is_no_difference() -> None:
    check(entry(RUN, LATER), entry(RUN, LATER))


def test_a_planted_run_is_told() -> None:
    before, after = entry(RUN), entry(RUN, replace(RUN, inputs="zeros/forward"))
    _, of_runs, of_sizes = differences([before], [after])
    assert of_runs.startswith("  ~ forward: - 1;")
    assert of_sizes == "  ~ forward at B=2 D=3: + zeros/forward"


def test_a_lost_size_is_told() -> None:
    told = list(differences([entry(RUN, LATER)], [entry(RUN)]))
    assert told[-1] == "  - forward at B=10 D=3: normal/reverse"


def test_another_order_is_told_by_the_digest_alone() -> None:
    _, told = differences([entry(RUN, LATER)], [entry(LATER, RUN)])
    assert told.startswith("  ~ forward: - ")


def test_a_run_that_is_asked_twice_is_counted() -> None:
    assert " B=2 D=3: normal/reverse*2" in entry(RUN, RUN).lines


def test_other_programs_are_in_no_order() -> None:
    one, other = replace(RUN, program="1", architecture="sm_80"), replace(RUN, program="2", architecture="sm_89")
    check(entry(RUN, one, other), entry(RUN, other, one))


def test_of_a_gpu_only_other_runs_are_kept() -> None:
    on_gpu = [replace(RUN, part="gpu forward"), replace(LATER, part="gpu forward")]
    lines = entry_of("k.cu", "tasks.py::f", "correct", [RUN], on_gpu).lines
    assert lines[-2:] == (f"gpu forward: 1 runs, order {lines[-2].split()[-1]}", " B=10 D=3: normal/reverse")


def test_another_outcome_is_told() -> None:
    before, after = Entry("k.cu", ("outcome: crashed",)), Entry("k.cu", ("outcome: correct",))
    check(before, after, "  ~ outcome: - crashed; + correct")


def test_a_failed_case_is_compared_where_the_record_has_one() -> None:
    found = [Entry("k.cu", ("outcome: mismatch", "failed: f normal x[2]"))]
    assert comparable(found, [Entry("k.cu", ("outcome: mismatch",))]) == [Entry("k.cu", ("outcome: mismatch",))]
    assert comparable(found, found) == found
