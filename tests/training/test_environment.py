"""The environment pays what a verdict is worth, and trajectories become rows for trainers."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.measurement import Measurement
from kernel_lsp.core.verdict import BuildFailed, Verdict
from kernel_lsp.errors import UserError
from kernel_lsp.training import environment as environment_module
from kernel_lsp.training.environment import (
    Action,
    KernelEnvironment,
    LiveBackend,
    LiveTask,
    Observation,
    RecordedBackend,
    action_text,
    outcome_of,
    parse_action,
    reward_of_speedups,
)
from kernel_lsp.training.table import ScheduleTable, TimedSchedule
from kernel_lsp.training.trajectories import TRL_FORMATS, Trajectory, rollouts, verl_rows, write_trl, write_verl
from tests.evolve.test_search import FakeProgram
from tests.evolve.world import TASK, FakeDevice, kernel, verdict_of
from tests.training.tables import made_up_table

ROOT = Path(__file__).parents[2]


def _table() -> ScheduleTable:
    """A table whose first task also has an incorrect schedule."""
    table = made_up_table(3)
    broken = TimedSchedule(schedule={"task.threads": 1}, time_us=0.1, error=0.5, features={})
    first = table.tasks[0].model_copy(update={"schedules": (*table.tasks[0].schedules, broken)})
    return table.model_copy(update={"tasks": (first, *table.tasks[1:])})


async def _in_order(observation: Observation) -> Action:
    task = next(each for each in _table().tasks if each.name == observation.task)
    return task.schedules[-1 - len(observation.history)].schedule


async def _trajectories() -> list[Trajectory]:
    backend = RecordedBackend(_table())
    return await rollouts(backend, backend.tasks, _in_order, n_steps=3, n_episodes=2)


async def test_a_recorded_episode_pays_by_time_and_correctness() -> None:
    environment = KernelEnvironment(RecordedBackend(_table()), n_steps=3)
    task = _table().tasks[0]
    environment.reset(task.name)
    wrong = await environment.step({"task.threads": 1})
    assert (wrong.reward, wrong.is_done, wrong.outcome.time_us) == (-1, False, None)
    fastest = min(task.schedules[:-1], key=lambda each: each.time_us or 0.0)
    fast = await environment.step(fastest.schedule)
    assert fast.outcome.time_us == fastest.time_us
    assert fast.reward == (2 if task.baselines_us["eager"] > 1.05 * (fastest.time_us or 0.0) else 1)
    last = await environment.step(task.schedules[0].schedule)
    assert last.is_done
    assert len(last.observation.history) == 3
    with pytest.raises(UserError):
        await environment.step(fastest.schedule)


async def test_what_was_not_recorded_is_refused() -> None:
    environment = KernelEnvironment(RecordedBackend(_table()))
    with pytest.raises(UserError):
        environment.reset("unknown")
    environment.reset("task1")
    for action in (kernel(5.0), {"task.threads": 7}):
        with pytest.raises(UserError):
            await environment.step(action)


@pytest.mark.parametrize(
    ("speedups", "kind", "value"),
    [
        ({"eager": 1.04}, "measured", 1),
        ({"eager": 1.06}, "measured", 2),
        ({"eager": 1.06, "default": 1.04}, "measured", 2),
        ({"eager": 1.06, "default": 1.06}, "measured", 3),
        ({"eager": 1.06, "default": 1.06}, "estimated", 2),
        ({"default": 2.0}, "measured", 1),
    ],
)
def test_rewards_have_gates_of_five_percent(speedups: dict[str, float], kind: str, value: int) -> None:
    assert reward_of_speedups(speedups, kind).value == value  # type: ignore[arg-type]


async def test_live_rewards_are_those_of_verdicts() -> None:
    device = FakeDevice()
    environment = KernelEnvironment(LiveBackend([LiveTask(TASK, device, FakeProgram())], depth="screen"), n_steps=4)
    first = environment.reset("scale")
    assert "scale_reference" in first.text()
    right = await environment.step(kernel(5.0))
    assert (right.reward, right.outcome.time_us) == (1, 5.0)
    wrong = await environment.step(kernel(5.0, "WRONG"))
    assert (wrong.reward, wrong.outcome.time_us) == (-1, None)
    assert "mismatch" in wrong.observation.text()
    invalid = await environment.step({"block": 1024, "vector": 8})
    assert invalid.reward == -1
    assert len(device.asked) == 2
    unknown = await environment.step({"no.such": 1})
    assert unknown.outcome.summary.endswith("it has no choice no.such")


async def test_a_live_task_lists_its_choices() -> None:
    environment = KernelEnvironment(LiveBackend([LiveTask(TASK, FakeDevice(), FakeProgram())]))
    text = environment.reset("scale").text()
    for knob in FakeProgram().realize({}).knobs:
        assert f"{knob.name}: {json.dumps(list(knob.values))}" in text


async def test_a_build_error_is_shown() -> None:
    verdict = verdict_of(Candidate(text=kernel(5.0), origin=Origin(proposer="user")))
    finding = Finding(code="nvrtc", severity=Severity.ERROR, message="expected a ';'", source="nvrtc")
    failed = verdict.model_copy(update={"outcome": BuildFailed(findings=(finding,)), "measurement": None})
    assert outcome_of(failed).summary == "build failed, expected a ';'"


async def test_completions_are_actions_of_the_environment() -> None:
    found = await _trajectories()
    for trajectory in found:
        for turn in trajectory.turns:
            assert parse_action(action_text(turn.action)) == turn.action
            assert action_text(turn.action) in turn.observation.text()
    assert parse_action("{ not a schedule") == "{ not a schedule"


async def test_the_page_s_example_runs() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    lines = text.split("```python\n")[1].split("```")[0].splitlines()
    body = "".join(f"    {line}\n" for line in lines)
    scope: dict[str, Any] = {
        **vars(environment_module),
        "ScheduleTable": ScheduleTable,
        "Path": lambda name: ROOT / name,
    }
    exec(f"async def example():\n{body}    return step\n", scope)
    assert (await scope["example"]()).reward >= 1


async def test_a_schedule_needs_a_program() -> None:
    environment = KernelEnvironment(LiveBackend([LiveTask(TASK, FakeDevice())]))
    environment.reset("scale")
    with pytest.raises(UserError):
        await environment.step({"block": 128})


async def test_rows_have_the_columns_of_their_trainers(tmp_path: Path) -> None:
    found = await _trajectories()
    assert len(found) == 6
    rows = {name: list(make(found)) for name, make in TRL_FORMATS.items()}
    assert all(set(row) == {"prompt", "completion"} for row in rows["trl-sft"])
    assert all(set(row) == {"prompt", "completion", "label"} for row in rows["trl-kto"])
    assert [row["task"] for row in rows["trl-grpo"]].count("task0") == 1
    n_turns = sum(len(each.turns) for each in found)
    n_wrong = sum(turn.outcome.reward.value < 1 for each in found for turn in each.turns)
    assert n_wrong == 2
    assert (len(rows["trl-kto"]), len(rows["trl-sft"])) == (n_turns, n_turns - n_wrong)
    assert write_trl(tmp_path / "kto.jsonl", found, "trl-kto") == n_turns
    line = json.loads((tmp_path / "kto.jsonl").read_text().splitlines()[0])
    assert [message["role"] for message in line["prompt"] + line["completion"]] == ["user", "assistant"]


async def test_verl_reads_its_columns_from_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = await _trajectories()
    n_rows = write_verl(tmp_path / "train.parquet", found)
    rows = parquet.read_table(tmp_path / "train.parquet").to_pylist()
    assert rows == list(verl_rows(found))
    assert len(rows) == n_rows
    assert set(rows[0]) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert rows[0]["reward_model"] == {"style": "rule", "ground_truth": "task0"}


def test_gymnasium_accepts_the_environment() -> None:
    pytest.importorskip("gymnasium")
    from kernel_lsp.training.gymnasium_environment import KernelGym

    environment = KernelGym(RecordedBackend(_table()), n_steps=2)
    observation, info = environment.reset(seed=3)
    assert observation in environment.observation_space
    assert environment.reset(seed=3)[1] == info
    observation, _ = environment.reset(options={"task": "task1"})
    action = json.dumps(_table().tasks[1].schedules[0].schedule)
    assert action in environment.action_space
    observation, reward, is_terminated, is_truncated, info = environment.step(action)
    assert observation in environment.observation_space
    task = _table().tasks[1]
    is_faster = task.baselines_us["eager"] > 1.05 * (task.schedules[0].time_us or 0.0)
    assert (reward, is_terminated, is_truncated) == (2.0 if is_faster else 1.0, False, False)
    assert info["time_us"] == _table().tasks[1].schedules[0].time_us
    environment.close()


async def test_gymnasiums_step_in_a_running_loop_says_what_to_do() -> None:
    pytest.importorskip("gymnasium")
    from kernel_lsp.training.gymnasium_environment import KernelGym

    environment = KernelGym(RecordedBackend(_table()), n_steps=2)
    environment.reset(seed=0)
    with pytest.raises(UserError, match="an event loop is running here"):
        environment.step("{}")
    _, reward, *_ = await asyncio.to_thread(environment.step, "no kernel")
    assert reward == -1.0


def test_gymnasiums_checker_passes_though_its_random_texts_are_no_action() -> None:
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    from kernel_lsp.training.gymnasium_environment import KernelGym

    environment = KernelGym(RecordedBackend(_table()), n_steps=2)
    check_env(environment, skip_render_check=True)
    environment.reset(seed=0)
    assert environment.step("no kernel")[1] == -1.0
    environment.close()


def test_a_measured_verdict_reports_its_time() -> None:
    verdict: Verdict = verdict_of(Candidate(text=kernel(5.0), origin=Origin(proposer="user")))
    measured = Measurement.model_construct(time_us=3.5)
    outcome = outcome_of(verdict.model_copy(update={"measurement": measured}))
    assert outcome.time_us == 3.5
    assert "3.5 us measured" in outcome.summary


async def test_the_live_example_of_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule, and then a text that is no kernel, on the PTX executor."""
    (example,) = re.findall(
        r"```python\n([^`]*?async def train.*?)```", (ROOT / "docs" / "training.md").read_text(), re.S
    )
    space: dict[str, Any] = {}
    exec(example.replace("n_steps=4, n_episodes=8", "n_steps=2, n_episodes=1"), space)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import torch\n\n# kernel-lsp: x=f32[8, 64]\ndef f(x):\n    return x + 1\n")

    async def agent(observation: Observation) -> Action:
        return "no kernel" if observation.history else {}

    await space["train"]("model.py::f", "cpu", agent)
    (turn,) = (json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines())
    assert turn["completion"][0]["content"] == "{}"
