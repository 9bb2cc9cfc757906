"""The trained order of schedules: the shipped file, its models, and the order that a search uses.

`kernel-lsp train` writes the file; without one a search draws its schedules at random. The cost model is
boosted regression trees, trained on the logarithm of each time over the geometric mean of its task, so that only the
order within a task counts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernel_lsp.core.task import Task
from kernel_lsp.errors import KernelLspError
from kernel_lsp.training.features import RealizedLike, candidate_features, schedule_features, task_features
from kernel_lsp.training.policy import Array, Network, Policy, Pool, Projection
from kernel_lsp.training.ppo import PpoSettings, Trainer
from kernel_lsp.training.table import TimedTask, feature_names, matrix

Codes = npt.NDArray[np.int64]

N_TREES = 160
DEPTH = 3
RATE = 0.08
N_BINS = 16
MIN_ROWS = 8
"""Minimum rows of a leaf."""
SHRINKAGE = 4.0
"""Rows of mean 0 that each leaf is averaged with."""
NEVER = 1e30
"""Threshold of a place without a split: above every feature."""
SHARE_OF_ROWS = 0.7
SHARE_OF_FEATURES = 0.3
"""Shares drawn anew for each tree."""


@dataclass
class Tree:
    """A complete binary tree in heap order. A row goes left where its feature is at most the threshold."""

    features: list[int]
    thresholds: list[float]
    leaves: list[float]

    def __call__(self, x: Array) -> Array:
        place = np.zeros(len(x), dtype=int)
        features, thresholds = np.array(self.features), np.array(self.thresholds)
        for _ in range(len(self.leaves).bit_length() - 1):
            goes_right = x[np.arange(len(x)), features[place]] > thresholds[place]
            place = 2 * place + 1 + goes_right
        leaves: Array = np.array(self.leaves)[place - len(features)]
        return leaves


@dataclass
class CostModel:
    """The sum of trees: lower is faster."""

    trees: list[Tree] = field(default_factory=list)

    def __call__(self, x: Array) -> Array:
        """Return the predicted logarithm of the time, up to a constant of the task."""
        total = np.zeros(len(x))
        for tree in self.trees:
            total += tree(x)
        return total

    def to_json(self) -> dict[str, Any]:
        return {"trees": [[t.features, t.thresholds, t.leaves] for t in self.trees]}

    @staticmethod
    def from_json(value: dict[str, Any]) -> CostModel:
        return CostModel([Tree(*each) for each in value["trees"]])


def fit_cost_model(x: Array, y: Array, draw: np.random.Generator) -> CostModel:
    """Return the model of these rows. `y` has mean 0 within each task."""
    edges = [_edges(column) for column in x.T]
    codes = np.stack([np.searchsorted(e, column, side="left") for e, column in zip(edges, x.T, strict=True)], axis=1)
    varying = np.array([len(each) > 0 and np.ptp(column) > 0 for each, column in zip(edges, x.T, strict=True)])
    known = np.flatnonzero(varying)
    model, residual = CostModel(), y.astype(float).copy()
    for _ in range(N_TREES):
        rows = draw.random(len(y)) < SHARE_OF_ROWS
        features = draw.choice(known, max(1, int(len(known) * SHARE_OF_FEATURES)), replace=False)
        tree = _grow(codes[rows], residual[rows], features, edges)
        residual -= tree(x)
        model.trees.append(tree)
    return model


def _edges(column: Array) -> Array:
    """Return up to N_BINS - 1 thresholds, each halfway between two values, so that rounding moves no row across."""
    values = np.unique(column)
    middles = (values[1:] + values[:-1]) / 2
    if len(middles) < N_BINS:
        return middles
    places = np.linspace(0, len(middles) - 1, N_BINS - 1).round().astype(int)
    chosen: Array = middles[places]
    return chosen


def _grow(codes: Codes, residual: Array, features: Codes, edges: Sequence[Array]) -> Tree:
    n_inner = 2**DEPTH - 1
    chosen, thresholds = [0] * n_inner, [NEVER] * n_inner
    members = {0: np.arange(len(residual))}
    for place in range(n_inner):
        rows = members.pop(place)
        found = _best_split(codes[rows], residual[rows], features)
        goes_right = np.zeros(len(rows), dtype=bool)
        if found is not None:
            feature, code = found
            chosen[place], thresholds[place] = int(feature), float(edges[feature][code])
            goes_right = codes[rows, feature] > code
        members[2 * place + 1], members[2 * place + 2] = rows[~goes_right], rows[goes_right]
    leaves = [residual[members[place]] for place in range(n_inner, 2 * n_inner + 1)]
    return Tree(chosen, thresholds, [RATE * float(leaf.sum()) / (len(leaf) + SHRINKAGE) for leaf in leaves])


def _best_split(codes: Codes, residual: Array, features: Codes) -> tuple[int, int] | None:
    """Return the feature and the last code of the left side with the largest gain; None where no split gains."""
    if len(residual) < 2 * MIN_ROWS:
        return None
    n, total = len(residual), residual.sum()
    shifted = (codes[:, features] + np.arange(len(features)) * N_BINS).ravel()
    size = len(features) * N_BINS
    counts = np.bincount(shifted, minlength=size).reshape(-1, N_BINS).cumsum(axis=1)
    sums = np.bincount(shifted, weights=np.repeat(residual, len(features)), minlength=size)
    sums = sums.reshape(-1, N_BINS).cumsum(axis=1)
    gains = sums**2 / (counts + SHRINKAGE) + (total - sums) ** 2 / (n - counts + SHRINKAGE)
    gains[(counts < MIN_ROWS) | (n - counts < MIN_ROWS)] = -1.0
    best = int(gains.argmax())
    if gains.flat[best] <= total**2 / (n + SHRINKAGE) + 1e-12:
        return None
    return int(features[best // N_BINS]), best % N_BINS


FILE = Path(__file__).parent / "schedule_models.json"
"""The shipped file."""
MAX_COST = 2.0
"""Predicted times of the default's up to which a schedule is tried. Of 246 that were measured in 14 searches, 9 were
predicted above and took 1.3 to 58 times the best one's time. Seven of them, one convolution's, occupied the GPU for
20 s (H200, 2026-11-28)."""
VERSION = 2
N_FOLDS = 5

Order = Literal["cost_model", "policy"]
Timed = tuple[RealizedLike, float]
"""A schedule with its time in microseconds."""


@dataclass
class Models:
    """A cost model and a policy over the same features. `order` names the one that a search uses."""

    names: list[str]
    cost_model: CostModel
    projection: Projection
    policy: Policy
    order: Order
    about: dict[str, Any]
    """Description of the training data."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "about": self.about,
            "order": self.order,
            "features": self.names,
            "cost_model": self.cost_model.to_json(),
            "projection": {"means": self.projection.means.tolist(), "axes": self.projection.axes.tolist()},
            "policy": self.policy.network.to_json(),
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Models:
        projection = Projection(np.array(value["projection"]["means"]), np.array(value["projection"]["axes"]))
        return Models(
            value["features"],
            CostModel.from_json(value["cost_model"]),
            projection,
            Policy(Network.from_json(value["policy"])),
            value["order"],
            value["about"],
        )


def train_models(
    tasks: Sequence[TimedTask], *, settings: PpoSettings | None, order: Order = "policy", seed: int = 0
) -> Models:
    """Train both models on these tasks."""
    return trained(tasks, settings=settings, order=order, seed=seed)[0]


def trained(
    tasks: Sequence[TimedTask], *, settings: PpoSettings | None, order: Order = "policy", seed: int = 0
) -> tuple[Models, Trainer]:
    """Train both models on these tasks, and return them with the policy's trainer, which can go on."""
    fitted = Fitted.on(tasks, seed)
    trainer = Trainer(fitted.pool, settings or PpoSettings(seed=seed))
    policy = trainer.train()
    n_schedules = sum(len(task.correct) for task in tasks)
    about = {"n_tasks": len(tasks), "n_schedules": n_schedules, "seed": seed}
    return Models(fitted.names, fitted.cost_model, fitted.projection, policy, order, about), trainer


@dataclass
class Fitted:
    """A policy's training data, and the cost model and projection for other tasks. The pool's predictions are those of
    cost models that have not seen the task's graph."""

    names: list[str]
    cost_model: CostModel
    projection: Projection
    pool: Pool

    @staticmethod
    def on(tasks: Sequence[TimedTask], seed: int) -> Fitted:
        names = feature_names(tasks)
        rows = [matrix(task, names) for task in tasks]
        priors: list[Array] = [np.zeros(len(x)) for x in rows]
        for part in folds(tasks, lambda task: task.graph):
            others = sorted(set(range(len(tasks))) - set(part))
            model = _cost_model([tasks[place] for place in others], [rows[place] for place in others], seed)
            for place in part:
                priors[place] = model(rows[place])
        projection = Projection.fit(np.concatenate(rows))
        pool = Pool.of([projection(x) for x in rows], [task.times_us for task in tasks], priors)
        return Fitted(names, _cost_model(tasks, rows, seed), projection, pool)

    def pool_of(self, tasks: Sequence[TimedTask]) -> Pool:
        """Return the pool of other tasks."""
        rows = [matrix(task, self.names) for task in tasks]
        return Pool.of(
            [self.projection(x) for x in rows], [task.times_us for task in tasks], [self.cost_model(x) for x in rows]
        )


def _cost_model(tasks: Sequence[TimedTask], rows: Sequence[Array], seed: int) -> CostModel:
    if not tasks:
        return CostModel()
    return fit_cost_model(np.concatenate(rows), centred_log_times(tasks), np.random.default_rng(seed))


def folds(tasks: Sequence[TimedTask], key: Callable[[TimedTask], str]) -> list[list[int]]:
    """Return the places of the tasks of each fold: groups with one key, the largest first, go to the smallest fold."""
    groups: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        groups.setdefault(key(task), []).append(place)
    found: list[list[int]] = [[] for _ in range(N_FOLDS)]
    order = sorted(groups)
    random.Random(0).shuffle(order)
    for group in sorted(order, key=lambda each: -len(groups[each])):
        min(found, key=len).extend(groups[group])
    return [fold for fold in found if fold]


def centred_log_times(tasks: Sequence[TimedTask]) -> Array:
    """Return the logarithm of each time over the geometric mean of its task: what the cost model predicts."""
    logarithms = [np.log(task.times_us) for task in tasks]
    return np.concatenate([each - each.mean() for each in logarithms])


def write_models(models: Models, path: Path) -> None:
    path.write_text(json.dumps(_shortened(models.to_json()), separators=(",", ":")) + "\n", encoding="utf-8")


def read_models(path: Path = FILE) -> Models | None:
    """Return the models of a file; None where there is no file, or one of another version."""
    if not path.exists():
        return None
    value = json.loads(path.read_text(encoding="utf-8"))
    return Models.from_json(value) if value.get("version") == VERSION else None


class ScheduleRanker:
    """Orders the schedules of one task by a trained model."""

    def __init__(self, models: Models, task: Task, default: RealizedLike) -> None:
        """Raises KernelLspError where the default cannot be bound at the captured sizes."""
        self._models, self._task = models, task
        self._of_task = task_features(task)
        self._of_default = schedule_features(default, task)

    def order(self, candidates: Sequence[RealizedLike], measured: Sequence[Timed] = ()) -> list[int]:
        """Return the places of the candidates, the most promising first. Those that do not cover the captured sizes are
        last. `measured` are schedules with their times, of which the policy makes use."""
        rows = {place: row for place, each in enumerate(candidates) if (row := self.row(each)) is not None}
        if not rows:
            return list(range(len(candidates)))
        known = [(row, time_us) for each, time_us in measured if (row := self.row(each)) is not None]
        scores = self._scores(np.stack(list(rows.values())), known)
        ranked = [place for _, place in sorted(zip(scores, rows, strict=True))]
        return [*ranked, *(place for place in range(len(candidates)) if place not in rows)]

    def promising(self, candidates: Sequence[RealizedLike], measured: Sequence[Timed] = ()) -> list[int]:
        """Return the places in their order, without those that are predicted to be much slower than the default."""
        return [place for place in self.order(candidates, measured) if not self._is_hopeless(candidates[place])]

    def _is_hopeless(self, schedule: RealizedLike) -> bool:
        row = self.row(schedule)
        if row is None:
            return False
        cost, of_default = self._models.cost_model(np.stack([row, self._vector(self._of_default)])).tolist()
        return bool(cost - of_default > np.log(MAX_COST))

    def row(self, schedule: RealizedLike) -> Array | None:
        """Return the features; None where the contract excludes the captured sizes."""
        try:
            of_schedule = schedule_features(schedule, self._task)
        except KernelLspError:
            return None
        return self._vector(of_schedule)

    def _vector(self, of_schedule: Mapping[str, float]) -> Array:
        found = candidate_features(self._of_task, of_schedule, self._of_default)
        return np.array([found.get(name, 0.0) for name in self._models.names])

    def _scores(self, x: Array, known: Sequence[tuple[Array, float]]) -> list[float]:
        """Return the predicted cost of each row: lower is better."""
        models = self._models
        if models.order == "cost_model":
            return models.cost_model(x).tolist()
        first = self._vector(self._of_default)
        reference_us = next((us for row, us in known if np.array_equal(row, first)), None)
        before = [(first, reference_us or 1.0)]
        if reference_us is not None:  # times count relative to the default's
            before += [(row, us) for row, us in known if not np.array_equal(row, first)]
        rows = np.concatenate([np.stack([row for row, _ in before]), x])
        times = np.array([us for _, us in before] + [before[0][1]] * len(x))
        pool = Pool.of([models.projection(rows)], [times], [models.cost_model(rows)])
        measured = np.zeros(pool.exists.shape, dtype=bool)
        measured[:, : len(before)] = True
        inputs = models.policy.inputs(pool, measured, 1.0 / len(before))
        return (-models.policy.log_probabilities(inputs, pool.exists & ~measured)[0, len(before) :]).tolist()


def trained_order(
    task: Task, default: RealizedLike
) -> Callable[[Sequence[RealizedLike], Sequence[Timed]], list[int]] | None:
    """Return the order of the shipped models for a task's promising schedules; None without them, or where the default
    cannot be bound."""
    models = read_models()
    if models is None:
        return None
    try:
        return ScheduleRanker(models, task, default).promising
    except KernelLspError:
        return None


def _shortened(value: Any) -> Any:
    """Round numbers to 6 digits, in lists and dictionaries."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    return [_shortened(each) for each in value] if isinstance(value, list) else value
