"""The judges' corpus shows nothing of its labels. `benchmarks/judge_corpus_check.py` says whether they are true."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

from kernel_lsp.evolve.run.judge_calibration import FAULTY
from kernel_lsp.llm.judges.calibration import JUDGES
from kernel_lsp.plan.parser import parse
from kernel_lsp.toolchain.integrity.masking import mask_comments

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CORPUS = BENCHMARKS / "judge_corpus"
LABELS = tomllib.loads((BENCHMARKS / "judge_corpus_labels.toml").read_text(encoding="utf-8"))
KERNELS = sorted(CORPUS.glob("*.cu"))


def body(file: Path) -> str:
    """The code under the plan, which an empty line ends."""
    return file.read_text(encoding="utf-8").split("\n\n", 1)[1]


def test_every_kernel_has_a_label_and_every_label_a_kernel() -> None:
    assert {file.name for file in KERNELS} == LABELS.keys()


def test_names_are_numbers() -> None:
    assert all(re.fullmatch(r"k\d\d\.cu", file.name) for file in KERNELS)


def test_the_folder_holds_nothing_but_kernels_and_their_tasks() -> None:
    tasks = {f"{label['task']}.py" for label in LABELS.values()}
    assert {file.name for file in CORPUS.iterdir() if file.is_file()} - LABELS.keys() == tasks


def test_the_code_has_no_comments() -> None:
    assert [file.name for file in KERNELS if mask_comments(body(file)) != body(file)] == []


def test_a_plan_says_the_task_of_its_label_and_has_no_prose() -> None:
    for file in KERNELS:
        text = file.read_text(encoding="utf-8")
        plan = parse(text).plan
        assert plan is None or plan.task == f"{LABELS[file.name]['task']}.py::{LABELS[file.name]['task']}"
        assert f"// task: {LABELS[file.name]['task']}.py::" in text
        assert all(re.match(r"// ( {2,}|[a-z-]+(\[.*\])?: )", line) for line in text.split("\n\n")[0].splitlines())


def test_each_kind_of_fault_has_enough_of_both_labels() -> None:
    outcomes = Counter(label["outcome"] for label in LABELS.values())
    assert len(LABELS) == 66
    assert outcomes["correct"] >= 20
    assert all(sum(outcomes[kind] for kind in FAULTY[judge]) >= 14 for judge in JUDGES)


def test_what_is_right_has_no_fault_and_what_is_not_has_one() -> None:
    assert all((label["outcome"] == "correct") == (label["fault"] == "none") for label in LABELS.values())
    assert all(label["fault"] in (*JUDGES, "none") and label["what"] for label in LABELS.values())
