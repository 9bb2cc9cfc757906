"""The environment in Gymnasium's interface; the only module that imports gymnasium.

Needs `pip install 'kernel_lsp[training]'`. Observations are dictionaries of texts and numbers; actions are texts. A
schedule is written as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import gymnasium
from gymnasium import spaces

from kernel_lsp.errors import UserError
from kernel_lsp.training.environment import Backend, KernelEnvironment, Observation, parse_action

MAX_TEXT = 1 << 20
"""Maximum characters of an action or an observation."""
CHARSET = frozenset(map(chr, (*range(9, 14), *range(32, 127))))


class KernelGym(gymnasium.Env[dict[str, Any], str]):
    """A `KernelEnvironment` as a Gymnasium environment: `reset(options={"task": name})` picks a task, else the seed."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, backend: Backend, n_steps: int = 4) -> None:
        self._backend = backend
        self._environment = KernelEnvironment(backend, n_steps)
        self._runner = asyncio.Runner()
        text = spaces.Text(MAX_TEXT, min_length=0, charset=CHARSET)
        self.action_space = text
        self.observation_space = spaces.Dict(
            {"task": text, "text": text, "n_left": spaces.Discrete(n_steps + 1)}  # type: ignore[dict-item]  # gymnasium's is invariant
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode on the task of `options`, or on a random one."""
        super().reset(seed=seed)
        names = self._backend.tasks
        task = (options or {}).get("task") or names[int(self.np_random.integers(len(names)))]
        return _as_dict(self._environment.reset(task)), {"task": task}

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Evaluate a kernel's text, or a schedule as a JSON object. Raises UserError in a running event loop."""
        with contextlib.suppress(RuntimeError):  # no loop is running
            asyncio.get_running_loop()
            raise UserError(
                "an event loop is running here, as in a notebook, and Gymnasium's `step` needs one of its own",
                next_step="await KernelEnvironment.step(action), or asyncio.to_thread(env.step, action)",
            )
        step = self._runner.run(self._environment.step(parse_action(action)))
        info = {"time_us": step.outcome.time_us, "reward_kind": step.outcome.reward.kind}
        return _as_dict(step.observation), float(step.reward), step.is_done, False, info

    def close(self) -> None:
        """End the event loop; devices belong to the backend."""
        self._runner.close()


def _as_dict(observation: Observation) -> dict[str, Any]:
    return {"task": observation.task, "text": observation.text(), "n_left": observation.n_left}
