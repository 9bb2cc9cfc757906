"""The one entry for everything that needs a GPU: a step that fails or hangs costs the others nothing."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu_all.py"
WRITES = "import json, sys; open(sys.argv[1], 'w').write(json.dumps({'n': 3}))"
HANGS_AFTER_WRITING = f"{WRITES}; import subprocess; subprocess.run(['sleep', '600'])"
FAILS = "import sys; print('what went wrong'); sys.exit(3)"
WRITES_HALF = "import sys; open(sys.argv[1], 'w').write('{\"n\": ')"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_all", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["gpu_all"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, texts: dict[str, str], limit_s: float
) -> dict[str, Any]:
    """Return the outcomes of steps that run these texts, by name."""

    def figures(report: dict[str, Any]) -> Iterator[Any]:
        yield program.Figure("n", str(report["n"]), "3", report["n"] == 3)

    steps = {
        name: program.Step(("-c", text, f"{{out}}/{name}.json"), limit_s, f"{name}.json", figures)
        for name, text in texts.items()
    }
    monkeypatch.setattr(program, "STEPS", steps)
    options = argparse.Namespace(out=out, budget_s=60.0, device="cpu", quick=False)
    return {each.name: each for each in program.run_all(list(texts), options)}


def test_every_step_is_run_whatever_becomes_of_those_before(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = {"fails": FAILS, "half": WRITES_HALF, "good": WRITES}
    done = run(program, monkeypatch, tmp_path, texts, 20)
    assert done["fails"].status == "ended with 3, no result"
    assert "what went wrong" in done["fails"].said
    assert "cannot be read" in done["half"].status
    assert [each.is_good for each in done.values()] == [False, False, True]
    assert [each["name"] for each in json.loads((tmp_path / "gpu_all.json").read_text())["steps"]] == list(texts)


def test_a_step_that_hangs_is_cut_short_and_what_it_wrote_counts(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = time.monotonic()
    done = run(program, monkeypatch, tmp_path, {"hangs": HANGS_AFTER_WRITING}, 1.5)
    assert time.monotonic() - started < 30
    assert done["hangs"].status == "cut short after 2 s"
    assert done["hangs"].is_good


def test_a_result_of_an_earlier_day_does_not_count(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import os

    (tmp_path / "fails.json").write_text('{"n": 3}')
    os.utime(tmp_path / "fails.json", (1, 1))
    assert not run(program, monkeypatch, tmp_path, {"fails": FAILS}, 20)["fails"].is_good


def test_the_halves_name_steps_that_fit_into_their_time(program: ModuleType) -> None:
    named = [name for names in program.PARTS.values() for name in names]
    assert sorted(named) == sorted(program.STEPS)
    for part in ("first", "second"):
        assert sum(program.STEPS[name].limit_s for name in program.PARTS[part]) <= 1.2 * program.BUDGET_S
