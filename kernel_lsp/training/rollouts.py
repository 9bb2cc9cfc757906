"""Rollouts: episodes of an agent over tasks, several at a time where the devices have room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kernel_lsp.training.environment import Action, Backend, KernelEnvironment, Observation, Outcome

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
