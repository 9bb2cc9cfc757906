"""Proximal policy optimization (arXiv 1707.06347) of the schedule policy, with the stabilizers of CUDA Agent
(arXiv 2602.24286).

Three switches: single-turn warm-up (episodes of one pick first), rejection fine-tuning (imitate the best of several
episodes per task) and critic pretraining (fit the critic to returns before it steers the policy).

With `advantages="group"` an episode is compared with the others of its task instead of with a critic, as in GRPO
(arXiv 2402.03300).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kernel_lsp.training.policy import Adam, Array, Critic, Indices, Mask, Policy, Pool

SHARE_GOAL = 0.95
"""Share of the best known time that an episode must reach to be imitated."""


@dataclass(frozen=True)
class PpoSettings:
    """Switches and sizes of a training. Iterations sample `n_episodes` episodes of every task; with the default, which
    is measured first, `n_picks` picks are a budget of 16."""

    single_turn_warmup: bool = True
    rejection_finetuning: bool = True
    critic_pretraining: bool = True
    n_picks: int = 15
    n_iterations: int = 24
    n_warmup_iterations: int = 12
    n_episodes: int = 2
    n_epochs: int = 3
    n_rejection_episodes: int = 2
    n_rejection_steps: int = 40
    n_critic_steps: int = 60
    rate: float = 3e-3
    decay: float = 0.3
    clip: float = 0.2
    entropy: float = 0.01
    seed: int = 0
    advantages: Literal["critic", "group"] = "critic"


@dataclass
class Batch:
    """Steps of many episodes, one row each. `returns` are the gains from that step on."""

    inputs: Array
    open: Mask
    picks: Array
    log_probabilities: Array
    returns: Array
    shares: Array
    """Share of the best known time at the end of the step's episode."""
    groups: Indices
    """Equal for the same step of the episodes of one task."""

    def take(self, rows: Mask) -> Batch:
        return Batch(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


Picks = tuple[Indices, Indices]
"""Tasks of the pool, and a candidate of each."""
Measure = Callable[[Picks], Awaitable[None]]
"""Measures those of the picks that have no time yet, and enters their times into the pool."""
Episodes = Generator[Picks, None, Batch]
"""Yields the picks of each step, whose times are then looked up in the pool."""


class Trainer:
    """Trains one policy on the pool of the training tasks."""

    def __init__(self, pool: Pool, settings: PpoSettings, policy: Policy | None = None) -> None:
        """`policy` is trained further, in place; a new one by default."""
        self._pool, self._settings = pool, settings
        self._draw = np.random.default_rng(settings.seed)
        n_components = pool.x.shape[2]
        self.policy = policy or Policy.new(n_components, self._draw)
        self.critic = Critic(n_components, self._draw)
        self._of_policy = Adam(self.policy.network, settings.rate, settings.decay)
        self._of_critic = Adam(self.critic.network, settings.rate, settings.decay)
        self.curve: list[float] = []
        """Mean share at the end of the sampled episodes, one value per iteration."""

    def train(self) -> Policy:
        """Run the stages and return the policy."""
        settings = self._settings
        n_multi = settings.n_iterations
        if settings.single_turn_warmup:
            for _ in range(settings.n_warmup_iterations):
                self._iterate(1)
        else:
            n_multi += settings.n_warmup_iterations  # the same number of updates with and without
        if settings.rejection_finetuning:
            self._finetune()
        if settings.critic_pretraining:
            self._pretrain_critic()
        for _ in range(n_multi):
            self._iterate(settings.n_picks)
        return self.policy

    async def iterate_live(self, measure: Measure) -> None:
        """Sample episodes whose picks are measured meanwhile, and update the policy. An error of `measure` leaves the
        policy as it was."""
        episodes = self._episodes(self._settings.n_picks, self._settings.n_episodes)
        try:
            while True:
                await measure(next(episodes))
        except StopIteration as ended:
            self._update(ended.value)

    def iterate(self) -> None:
        """Sample episodes of measured candidates, and update the policy."""
        self._iterate(self._settings.n_picks)

    def _iterate(self, n_picks: int) -> None:
        self._update(self.sample(n_picks, self._settings.n_episodes))

    def _update(self, batch: Batch) -> None:
        self.curve.append(float(batch.shares.mean()))
        advantages = batch.returns - self._baselines(batch)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(self._settings.n_epochs):
            self._of_policy.step(self._policy_gradients(batch, advantages))
            if self._settings.advantages == "critic":
                self._critic_step(batch)

    def _baselines(self, batch: Batch) -> Array:
        """Return what each step is compared with: the critic's prediction, or the mean of its group."""
        if self._settings.advantages == "critic":
            return self.critic.network(Critic.inputs(batch.inputs, batch.open))
        means: Array = np.bincount(batch.groups, batch.returns) / np.maximum(1, np.bincount(batch.groups))
        return means[batch.groups]

    def _finetune(self) -> None:
        """Imitate the picks of the episodes that reach the goal, weighted by what each pick and those after it gained;
        picks after the best was found gained nothing and are dropped."""
        settings = self._settings
        batch = self.sample(settings.n_picks, settings.n_rejection_episodes)
        kept = batch.take((batch.shares >= SHARE_GOAL) & (batch.returns > 1e-6))
        if not len(kept.picks):
            return
        weights = kept.returns / kept.returns.mean()
        for _ in range(settings.n_rejection_steps):
            self._of_policy.step(self._imitation_gradients(kept, weights))

    def _pretrain_critic(self) -> None:
        batch = self.sample(self._settings.n_picks, self._settings.n_rejection_episodes)
        for _ in range(self._settings.n_critic_steps):
            self._critic_step(batch)

    def _policy_gradients(self, batch: Batch, advantages: Array) -> list[Array]:
        """Return the gradients of the clipped objective and of the entropy bonus."""
        logarithms = self.policy.log_probabilities(batch.inputs, batch.open)
        rows = np.arange(len(batch.picks))
        ratios = np.exp(logarithms[rows, batch.picks] - batch.log_probabilities)
        clip = self._settings.clip
        is_clipped = np.where(advantages > 0, ratios > 1 + clip, ratios < 1 - clip)
        weights = np.where(is_clipped, 0.0, ratios * advantages)
        probabilities = np.exp(logarithms)
        of_scores = weights[:, None] * (probabilities - _one_hot(batch.picks, probabilities.shape[1]))
        finite = np.where(batch.open, logarithms, 0.0)
        entropies = -(probabilities * finite).sum(axis=1, keepdims=True)
        of_scores += self._settings.entropy * probabilities * (finite + entropies)
        return self._through(batch, of_scores)

    def _imitation_gradients(self, batch: Batch, weights: Array) -> list[Array]:
        probabilities = np.exp(self.policy.log_probabilities(batch.inputs, batch.open))
        return self._through(batch, weights[:, None] * (probabilities - _one_hot(batch.picks, probabilities.shape[1])))

    def _through(self, batch: Batch, of_scores: Array) -> list[Array]:
        open_ = batch.open.ravel()
        inputs = batch.inputs.reshape(-1, batch.inputs.shape[2])[open_]
        return self.policy.gradients(inputs, of_scores.ravel()[open_] / len(batch.picks))

    def _critic_step(self, batch: Batch) -> None:
        inputs = Critic.inputs(batch.inputs, batch.open)
        errors = self.critic.network(inputs) - batch.returns
        self._of_critic.step(self.critic.network.gradients(inputs, 2 * errors / len(errors)))

    def sample(self, n_picks: int, n_episodes: int) -> Batch:
        """Return the steps of `n_episodes` sampled episodes of every task."""
        episodes = self._episodes(n_picks, n_episodes)
        try:
            while True:
                next(episodes)
        except StopIteration as ended:
            batch: Batch = ended.value
            return batch

    def _episodes(self, n_picks: int, n_episodes: int) -> Episodes:
        """Sample `n_episodes` episodes of every task. A step's gain is of the share of the best time that is known at
        the end, when all picks have theirs."""
        tasks = np.repeat(np.arange(len(self._pool.x)), n_episodes)
        pool = self._pool.take(tasks)
        rows = np.arange(len(pool.x))
        measured = np.zeros(pool.exists.shape, dtype=bool)
        measured[:, 0] = True
        steps: list[tuple[Any, ...]] = []
        found = [np.zeros(len(rows))]  # the default's time is 1
        for step in range(n_picks):
            inputs = self.policy.inputs(pool, measured, (n_picks - step) / n_picks)
            open_ = pool.exists & ~measured
            logarithms = self.policy.log_probabilities(inputs, open_)
            noise = self._draw.gumbel(size=logarithms.shape)
            picks = (logarithms + noise).argmax(axis=1)
            goes_on = open_.any(axis=1)
            steps.append((inputs, open_, picks, logarithms[rows, picks], goes_on))
            yield tasks[goes_on], picks[goes_on]
            pool.log_times[rows, picks] = self._pool.log_times[tasks, picks]
            measured[rows[goes_on], picks[goes_on]] = True
            found.append(np.where(measured, pool.log_times, np.inf).min(axis=1))
        best = self._pool.best[tasks]
        shares = np.exp(best - np.stack(found))
        returns = np.cumsum(np.diff(shares, axis=0)[::-1], axis=0)[::-1]
        return _joined(steps, returns, shares[-1], tasks)


def _joined(steps: Sequence[tuple[Any, ...]], returns: Array, share: Array, tasks: Indices) -> Batch:
    inputs, open_, picks, logarithms, goes_on = (np.concatenate(each) for each in zip(*steps, strict=True))
    shares = np.tile(share, len(steps))
    groups = (np.arange(len(steps))[:, None] * (tasks.max(initial=0) + 1) + tasks).ravel()
    return Batch(inputs, open_, picks, logarithms, returns.ravel(), shares, groups).take(goes_on)


def _one_hot(picks: Array, n: int) -> Array:
    found = np.zeros((len(picks), n))
    found[np.arange(len(picks)), picks] = 1.0
    return found
