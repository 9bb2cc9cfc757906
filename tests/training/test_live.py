"""Live rewards: picks are evaluated once while the policy learns from them, and a command that was killed goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from kernel_lsp.cli.train import LiveRequest, main
from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import UserError
from kernel_lsp.generate.program import Program, plan_program
from kernel_lsp.training import live as live_module
from kernel_lsp.training.environment import LiveBackend, LiveTask
from kernel_lsp.training.features import schedule_features
from kernel_lsp.training.live import DeadlineReached, Journal, LivePool, LiveSettings, OpenedTask, train_live
from kernel_lsp.training.policy import Policy
from kernel_lsp.training.ppo import PpoSettings, Trainer
from kernel_lsp.training.ranker import CostModel, Models, read_models, train_models
from tests.evolve.world import TASK, kernel, verdict_of
from tests.training.tables import made_up_table
from tests.training.test_ranker import _timed

SETTINGS = LiveSettings(n_candidates=16, n_picks=4, n_episodes=4)


@pytest.fixture(scope="module")
def program() -> Program:
    return plan_program(TASK)


@pytest.fixture(scope="module")
def models(program: Program) -> Models:
    return train_models(_timed(program), settings=PpoSettings(n_iterations=1, n_warmup_iterations=1), seed=0)


class Killed(Exception):
    """The process was killed."""


@dataclass
class SmallBlocksDevice:
    """Kernels with fewer threads in a block are faster there; some are incorrect. Dies after `lives` evaluations."""

    program: Program
    lives: int = 10**6
    delay_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    n_now: int = 0
    n_most: int = 0

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        assert depth == "rank"
        self.n_now += 1
        self.n_most = max(self.n_most, self.n_now)
        await asyncio.sleep(self.delay_s)
        self.n_now -= 1
        if len(self.asked) >= self.lives:
            raise Killed
        self.asked.append(candidate.id)
        features = schedule_features(self.program.realize(candidate.origin.schedule), TASK)
        is_wrong = features["knob.threads"] < 6.5
        time_us = 10.0 * features["knob.threads"] + features["knob.vector"]
        return verdict_of(candidate.model_copy(update={"text": kernel(time_us, *["WRONG"] * is_wrong)}))


def opened(
    device: SmallBlocksDevice, program: Program, kind: Literal["measured", "estimated"] = "estimated"
) -> OpenedTask:
    return OpenedTask(LiveTask(TASK, device, program), "fake", 2, kind)


async def trained(
    device: SmallBlocksDevice,
    program: Program,
    models: Models,
    path: Path,
    n_rounds: int = 6,
    ends: float = float("inf"),
) -> tuple[Policy, LivePool, live_module.LiveTraining]:
    """Return a copy of the models' policy that was trained on the device."""
    policy = Models.from_json(models.to_json()).policy
    with Journal.open(path) as journal:
        pool = await LivePool.of([opened(device, program)], models, journal, SETTINGS, ends)
        return policy, pool, await train_live(pool, policy, n_rounds=n_rounds)


def weights(policy: Policy) -> bytes:
    return b"".join(each.tobytes() for each in policy.network.parameters)


async def test_a_training_is_the_same_under_its_seed_and_asks_for_each_schedule_once(
    program: Program, models: Models, tmp_path: Path
) -> None:
    found = []
    for name in ("first", "second"):
        device = SmallBlocksDevice(program)
        policy, pool, training = await trained(device, program, models, tmp_path / name)
        assert len(device.asked) == len(set(device.asked)) == pool.n_evaluated
        assert (training.n_rounds, training.is_cut, len(training.curve)) == (6, False, 6)
        found.append(weights(policy))
    assert found[0] == found[1] != weights(models.policy)


async def test_a_killed_training_goes_on_where_it_stopped(program: Program, models: Models, tmp_path: Path) -> None:
    whole, *_ = await trained(SmallBlocksDevice(program), program, models, tmp_path / "whole")
    killed, path = SmallBlocksDevice(program, lives=7), tmp_path / "journal"
    with pytest.raises(Killed):
        await trained(killed, program, models, path)
    with path.open("a") as file:
        file.write('{"device":"fake","task":"mod')  # as the kill left it
    again = SmallBlocksDevice(program)
    policy, pool, _ = await trained(again, program, models, path)
    assert pool.n_replayed == len(killed.asked) == 7
    assert not set(killed.asked) & set(again.asked)
    assert weights(policy) == weights(whole)


async def test_the_deadline_ends_a_training_with_its_last_whole_round(
    program: Program, models: Models, tmp_path: Path
) -> None:
    started = time.monotonic()
    device = SmallBlocksDevice(program, delay_s=0.15)
    policy, pool, training = await trained(device, program, models, tmp_path / "j", 50, ends=started + 1.0)
    assert training.is_cut
    assert time.monotonic() - started < 10.0
    assert pool.n_evaluated == len(device.asked) > 0
    n_lines = len((tmp_path / "j").read_text().splitlines())
    assert n_lines == len(device.asked)
    replayed = SmallBlocksDevice(program, lives=0)
    if training.n_rounds:
        same, *_ = await trained(replayed, program, models, tmp_path / "j", training.n_rounds)
        assert weights(same) == weights(policy)
    else:
        assert weights(policy) == weights(models.policy)
    with pytest.raises(DeadlineReached):
        await trained(SmallBlocksDevice(program), program, models, tmp_path / "k", ends=started)


async def test_a_policy_learns_what_no_cost_model_predicts(program: Program, models: Models, tmp_path: Path) -> None:
    """The picks of the trained policy reach more of the best known time, of the same pool, than those before."""
    models = replace(models, cost_model=CostModel())
    policy, pool, _ = await trained(SmallBlocksDevice(program), program, models, tmp_path / "j", n_rounds=40)
    reached = []
    for each in (Models.from_json(models.to_json()).policy, policy):
        (picks,) = await pool.follow(each, 3)
        reached.append(pool.pool.log_times[0, picks].min())
    assert reached[1] < reached[0]
    assert pool.best_us(0) < pool.default_us(0)


async def test_evaluations_of_a_task_fill_its_slots_and_no_more(
    program: Program, models: Models, tmp_path: Path
) -> None:
    device = SmallBlocksDevice(program, delay_s=0.01)
    _, pool, _ = await trained(device, program, models, tmp_path / "j", n_rounds=2)
    assert device.n_most == 2
    n_failed = int((pool.pool.log_times == live_module.FAILED_LOG_TIME).sum())
    assert pool.n_failed == n_failed > 0  # incorrect schedules count, and are asked for once, too


async def test_an_estimate_is_no_time_of_a_gpu(program: Program, models: Models, tmp_path: Path) -> None:
    """A GPU that measured nothing for once would have had the executor's estimate among its times."""
    task = opened(SmallBlocksDevice(program), program, "measured")
    with Journal.open(tmp_path / "j") as journal, pytest.raises(UserError, match="has no time: not timed: correct"):
        await LivePool.of([task], models, journal, SETTINGS)


async def test_recorded_tasks_are_learned_from_between_the_rounds(
    program: Program, models: Models, tmp_path: Path
) -> None:
    class Counting(Trainer):
        n = 0

        def iterate(self) -> None:
            self.n += 1

    recorded = object.__new__(Counting)
    with Journal.open(tmp_path / "j") as journal:
        pool = await LivePool.of([opened(SmallBlocksDevice(program), program)], models, journal, SETTINGS)
        await train_live(pool, Models.from_json(models.to_json()).policy, n_rounds=3, recorded=recorded)
    assert recorded.n == 3


def test_episodes_of_a_group_are_compared_with_each_other() -> None:
    """The mean of the returns of one step of one task, as in GRPO; a critic sees no difference between two tasks."""
    from kernel_lsp.training.ranker import Fitted

    trainer = Trainer(Fitted.on(made_up_table(6).usable(), 0).pool, PpoSettings(n_picks=2, advantages="group"))
    batch = trainer.sample(2, 3)
    found = trainer._baselines(batch)
    for group in set(batch.groups.tolist()):
        rows = batch.groups == group
        assert rows.sum() == 3
        assert np.allclose(found[rows], batch.returns[rows].mean())


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    for text in ("my notes", "my notes\n", '{"a": 1}\n'):
        (tmp_path / "notes").write_text(text)
        with pytest.raises(UserError, match="no journal"), Journal.open(tmp_path / "notes"):
            pass
        assert (tmp_path / "notes").read_text() == text


def test_two_live_tasks_of_one_name_are_refused(program: Program) -> None:
    """The second replaced the first, unseen."""
    one = LiveTask(TASK, SmallBlocksDevice(program), program)
    with pytest.raises(UserError, match="same name"):
        LiveBackend([one, one])


def run(*targets: str, out: Path, **options: Any) -> int:
    request = LiveRequest(targets, n_rounds=1, overrides={"device": "cpu"}, **options)
    return main([], [], out, "policy", 0, request)


def test_the_command_trains_the_installed_policy_on_the_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verdict and estimate of the executor are the reward there. The second run measures nothing again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live_module.LiveSettings, "__init__", _few(LiveSettings.__init__))
    (tmp_path / "model.py").write_text(
        "import torch\n\n# kernel-lsp: x=f32[64, 128]\ndef f(x):\n    return torch.relu(x + 1)\n"
    )
    for n_known in (0, 4):
        assert run("model.py::f", out=tmp_path / "m.json") == 0
        said = capsys.readouterr().out
        assert "live rewards of PTX executor (CPU), estimates for H200: 1 of 1 rounds" in said
        assert f"{n_known} known from" in said
    models = read_models(tmp_path / "m.json")
    assert models is not None
    assert models.about["live"]["kinds"] == ["estimated"]
    assert models.about["live"]["n_evaluated"] == 4


def _few(original: Callable[..., None]) -> Callable[..., None]:
    """Few schedules, all of which an episode picks."""

    def init(self: LiveSettings, **given: Any) -> None:
        original(self, n_candidates=4, n_picks=3, n_episodes=2, **given)

    return init


@pytest.mark.parametrize(
    ("targets", "words"),
    [(["missing.py::f"], "missing.py"), (["model.py::f", "model.py::f"], "twice")],
)
def test_bad_targets_end_with_one_line(
    targets: Sequence[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import torch\n\n# kernel-lsp: x=f32[8]\ndef f(x):\n    return x + 1\n")
    assert run(*targets, out=tmp_path / "m.json") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "m.json").exists()
