"""The judges' table of docs/model-results.md is what `kernel-lsp judge calibrate` prints."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from kernel_lsp.cli.judge import print_report
from kernel_lsp.evolve.run.judge_calibration import CalibrationReport
from kernel_lsp.llm.judges.calibration import COLUMNS

ROOT = Path(__file__).parent.parent.parent


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_judge_table", ROOT / "scripts" / "write_judge_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table() -> list[list[str]]:
    page = (ROOT / "docs" / "model-results.md").read_text()
    start = page.index("<!-- judges: written")
    lines = page[start : page.index("<!-- judges: end -->")].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def test_the_page_is_as_the_script_writes_it() -> None:
    page = (ROOT / "docs" / "model-results.md").read_text()
    assert script().with_table(page, script().newest_scores()) == page


def test_the_page_has_the_rows_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    newest = max((ROOT / "benchmarks" / "results").glob("judges-*.json"))
    report = CalibrationReport.model_validate(
        {
            **{k: v for k, v in json.loads(newest.read_text()).items() if k in CalibrationReport.model_fields},
            "file": "f",
        }
    )
    print_report(report)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    head, rule, *rows = table()
    assert tuple(head) == COLUMNS
    assert set(rule) == {"---"}
    assert [" ".join(row).split() for row in rows] == printed[1 : 1 + len(rows)]
    assert len(rows) == len(report.scores) > 0
