"""Rollouts of an agent over tasks, and trajectories as files for trainers of language models: TRL (JSON lines) and verl
(Parquet).

| format | columns |
|---|---|
| `trl-sft` | `prompt`, `completion`: conversations, of turns that were correct |
| `trl-kto` | `prompt`, `completion`, `label`: unpaired preference; true from reward 2 on |
| `trl-grpo` | `prompt` and the column `task`, which a reward function receives |
| `verl` | `data_source`, `prompt`, `ability`, `reward_model`, `extra_info` |

The formats are those of TRL's "Dataset formats and types" and verl's "Prepare data for post-training".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.training.environment import (
    FASTER_THAN_EAGER,
    RIGHT,
    Action,
    Backend,
    KernelEnvironment,
    Observation,
    Outcome,
    action_text,
)

Agent = Callable[[Observation], Awaitable[Action]]
"""Chooses the next action: a model, a policy, or a fixed order."""


@dataclass(frozen=True)
class Turn:
    """One step of a trajectory: what the agent saw, did and got."""

    observation: Observation
    action: Action
    outcome: Outcome


@dataclass(frozen=True)
class Trajectory:
    """One episode. Its return is the highest reward: the best kernel of an episode is kept."""

    task: str
    turns: tuple[Turn, ...]

    @property
    def total(self) -> int:
        return max(turn.outcome.reward.value for turn in self.turns)


async def rollout(backend: Backend, task: str, agent: Agent, n_steps: int) -> Trajectory:
    """Return one episode of the agent."""
    environment = KernelEnvironment(backend, n_steps)
    observation, turns = environment.reset(task), []
    while True:
        action = await agent(observation)
        step = await environment.step(action)
        turns.append(Turn(observation, action, step.outcome))
        if step.is_done:
            return Trajectory(task, tuple(turns))
        observation = step.observation


async def rollouts(
    backend: Backend, tasks: Sequence[str], agent: Agent, *, n_steps: int, n_episodes: int = 1, n_at_once: int = 2
) -> list[Trajectory]:
    """Return `n_episodes` episodes of each task, in order; at most `n_at_once` (a verifier's `n_slots`) run at once."""
    slots = asyncio.Semaphore(n_at_once)

    async def one(task: str) -> Trajectory:
        async with slots:
            return await rollout(backend, task, agent, n_steps)

    return await asyncio.gather(*(one(task) for task in tasks for _ in range(n_episodes)))


Row = dict[str, Any]
DATA_SOURCE = "kernel_lsp"
ABILITY = "cuda"


def sft_rows(trajectories: Sequence[Trajectory]) -> Iterator[Row]:
    """Yield conversational prompt-completion rows of correct turns."""
    for _, turn in _turns(trajectories):
        if turn.outcome.reward.value >= RIGHT:
            yield {"prompt": _prompt(turn), "completion": _completion(turn)}


def kto_rows(trajectories: Sequence[Trajectory]) -> Iterator[Row]:
    """Yield unpaired preferences: a turn is preferred where its kernel is faster than eager PyTorch."""
    for _, turn in _turns(trajectories):
        label = turn.outcome.reward.value >= FASTER_THAN_EAGER
        yield {"prompt": _prompt(turn), "completion": _completion(turn), "label": label}


def grpo_rows(trajectories: Sequence[Trajectory]) -> Iterator[Row]:
    """Yield the first prompt of each task once; TRL samples completions and asks a reward function."""
    for trajectory in {each.task: each for each in reversed(trajectories)}.values():
        yield {"prompt": _prompt(trajectory.turns[0]), "task": trajectory.task}


def verl_rows(trajectories: Sequence[Trajectory], split: str = "train") -> Iterator[Row]:
    """Yield verl's rows, one for each turn. The reward is by rule, so `ground_truth` names the task to verify against;
    what was recorded for the turn is in `extra_info`."""
    for index, (trajectory, turn) in enumerate(_turns(trajectories)):
        yield {
            "data_source": DATA_SOURCE,
            "prompt": _prompt(turn),
            "ability": ABILITY,
            "reward_model": {"style": "rule", "ground_truth": trajectory.task},
            "extra_info": {
                "split": split,
                "index": index,
                "answer": action_text(turn.action),
                "reward": turn.outcome.reward.value,
                "reward_kind": turn.outcome.reward.kind,
            },
        }


TRL_FORMATS: dict[str, Callable[[Sequence[Trajectory]], Iterator[Row]]] = {
    "trl-sft": sft_rows,
    "trl-kto": kto_rows,
    "trl-grpo": grpo_rows,
}


def write_trl(path: Path, trajectories: Sequence[Trajectory], format_: str) -> int:
    """Write JSON lines, and return their number."""
    rows = list(TRL_FORMATS[format_](trajectories))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def write_verl(path: Path, trajectories: Sequence[Trajectory], split: str = "train") -> int:
    """Write a Parquet file, and return its number of rows. Raises EnvironmentProblem without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        step = "pip install 'kernel_lsp[parquet]'"
        raise EnvironmentProblem("Parquet files need pyarrow, which is not installed", next_step=step) from None
    rows = list(verl_rows(trajectories, split))
    pq.write_table(pa.Table.from_pylist(rows), path)
    return len(rows)


def _turns(trajectories: Sequence[Trajectory]) -> Iterator[tuple[Trajectory, Turn]]:
    for trajectory in trajectories:
        for turn in trajectory.turns:
            yield trajectory, turn


def _prompt(turn: Turn) -> list[dict[str, str]]:
    return [{"role": "user", "content": turn.observation.text()}]


def _completion(turn: Turn) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": action_text(turn.action)}]
