"""A cost model: boosted regression trees over the features of schedules, in numpy.

Trained on the logarithm of each time over the geometric mean of its task, so that only the order within a task counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_lsp.training.policy import Array

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


def fit_cost_model(x: Array, y: Array, draw: np.random.Generator, n_trees: int = N_TREES) -> CostModel:
    """Return the model of these rows. `y` has mean 0 within each task."""
    edges = [_edges(column) for column in x.T]
    codes = np.stack([np.searchsorted(e, column, side="left") for e, column in zip(edges, x.T, strict=True)], axis=1)
    varying = np.array([len(each) > 0 and np.ptp(column) > 0 for each, column in zip(edges, x.T, strict=True)])
    known = np.flatnonzero(varying)
    model, residual = CostModel(), y.astype(float).copy()
    for _ in range(n_trees):
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
