"""Rows for learning: every version of every proposal, with its reward, in documented columns."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import Comparison, Measurement, TimedBaseline
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import EnvironmentProblem, KernelLspError
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import Row, rows, write_dataset
from kernel_lsp.evolve.run.request import ModelChoices
from kernel_lsp.llm.request import ModelRequest
from kernel_lsp.training.environment import reward
from tests.evolve.world import TASK, World, kernel, reply, verdict_of
from tests.scripted_model import ScriptedModel

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "dataset.md"
CHOICES = ModelChoices(early_stop="off", repair_rounds=1)


def measured(time_us: float) -> Measurement:
    return Measurement.model_construct(time_us=time_us)


def right(*speedups: dict[str, float]) -> Verdict:
    """A right kernel with one operation per dictionary of speed-ups by baseline."""
    verdict = verdict_of(Candidate(text=kernel(1), origin=Origin(proposer="model")))
    times = {
        f"op{number}": Comparison.model_construct(
            baseline_name="eager",
            baseline=measured(1.0),
            ours=measured(1.0),
            baselines=tuple(
                TimedBaseline.model_construct(name=name, measurement=measured(speedup), ratio=None)
                for name, speedup in by_name.items()
            ),
        )
        for number, by_name in enumerate(speedups)
    }
    return verdict.model_copy(update={"times": times})


@pytest.mark.parametrize(
    ("speedups", "value"),
    [
        ([{"eager": 0.5, "compile": 0.4}], 1),
        ([{"eager": 1.04, "compile": 9.0}], 1),
        ([{"eager": 1.06, "compile": 1.0}], 2),
        ([{"eager": 1.5, "compile": 1.5, "compile max-autotune": 1.04}], 2),
        ([{"eager": 1.5, "compile": 1.5, "compile max-autotune": 1.06}], 3),
        ([{"eager": 2.0, "compile": 2.0}, {"eager": 1.0, "compile": 2.0}], 1),
        ([{"eager": 2.0}], 2),
        ([], 1),
    ],
)
def test_a_reward_is_by_what_was_beaten(speedups: list[dict[str, float]], value: int) -> None:
    assert reward(right(*speedups)).value == value


def test_a_wrong_kernel_earns_minus_one() -> None:
    assert reward(verdict_of(Candidate(text=kernel(1, "WRONG"), origin=Origin(proposer="model")))).value == -1


async def found_rows(folder: Path) -> list[Row]:
    def answer(request: ModelRequest) -> str:
        if request.sample == 1:
            return "prose"
        return reply(5) if request.purpose == "repair" else reply(6, "WRONG")

    world = World(folder, 1, 2, CHOICES)
    await world.search(ScriptedModel(answer, name="m"))
    assert world.run_id is not None
    with Archive(folder) as archive:
        archive.save_task(world.run_id, TASK.model_dump_json())
        return list(rows(archive, world.run_id))


async def test_each_version_of_a_proposal_is_a_row(tmp_path: Path) -> None:
    found = await found_rows(tmp_path)
    assert [(row.slot, row.round, row.outcome, row.reward) for row in found] == [
        (0, 0, "mismatch", -1),
        (0, 1, "correct", 1),
        (1, 0, "unreadable", -1),
    ]
    assert "3 of 35 elements wrong" in found[0].feedback
    assert json.loads(found[0].messages)[0]["role"] == "system"
    assert found[2].reply == "prose"
    assert found[1].time_us == 5.0


async def test_json_lines_read_back(tmp_path: Path) -> None:
    found = await found_rows(tmp_path)
    assert write_dataset(iter(found), tmp_path / "d.jsonl", "jsonl") == 3
    lines = (tmp_path / "d.jsonl").read_text().splitlines()
    assert [Row.model_validate_json(line) for line in lines] == found


async def test_parquet_reads_back(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert write_dataset(iter(await found_rows(tmp_path)), tmp_path / "d.parquet", "parquet") == 3
    assert parquet.read_table(tmp_path / "d.parquet").num_rows == 3


async def test_without_pyarrow_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentProblem, match="pyarrow"):
        write_dataset(iter([]), tmp_path / "d.parquet", "parquet")


def test_every_column_is_documented() -> None:
    text = DOCUMENT.read_text()
    documented = {name for line in text.splitlines() if line.startswith("| `") for name in _names(line.split("|")[1])}
    assert documented == set(Row.model_fields)


def test_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive, pytest.raises(KernelLspError, match="no run"):
        list(rows(archive, "x"))


def _names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)
