"""A policy that picks the next schedule to measure: a score for each candidate from its features, by a small perceptron
in numpy.

An episode begins with the default measured. Each pick earns the growth of the share of the best known time, so that an
episode's return is that share at its end. All episodes of a batch advance together as padded arrays.

The score of a candidate is the network's bounded output minus a multiple of its predicted time: the cost model's
prediction, corrected by what it missed at measured neighbours. So an untrained policy has the order of the cost model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass
class Network:
    """Layers of rectifiers, and a linear last one. Rows of `x` are samples; a network has one output per sample."""

    weights: list[Array]
    biases: list[Array]

    @staticmethod
    def new(sizes: Sequence[int], draw: np.random.Generator) -> Network:
        """Return a network with these layer sizes. The last layer starts near 0, so that scores start equal."""
        pairs = list(itertools.pairwise(sizes))
        weights = [draw.normal(0.0, 1.0 / np.sqrt(n_in), (n_in, n_out)) for n_in, n_out in pairs]
        weights[-1] *= 0.1
        return Network(weights, [np.zeros(n_out) for _, n_out in pairs])

    def __call__(self, x: Array) -> Array:
        """Return the output of each row."""
        return self._layers(x)[-1][..., 0]

    def gradients(self, x: Array, of_output: Array) -> list[Array]:
        """Return the gradients of all parameters, weights first, for the gradient of each row's output."""
        layers = self._layers(x)
        back = of_output[:, None]
        of_weights: list[Array] = []
        of_biases: list[Array] = []
        for place in reversed(range(len(self.weights))):
            of_weights.append(layers[place].T @ back)
            of_biases.append(back.sum(axis=0))
            if place:
                back = (back @ self.weights[place].T) * (layers[place] > 0)
        return [*reversed(of_weights), *reversed(of_biases)]

    @property
    def parameters(self) -> list[Array]:
        """Return the arrays themselves, weights first."""
        return [*self.weights, *self.biases]

    def to_json(self) -> dict[str, Any]:
        return {name: [each.tolist() for each in getattr(self, name)] for name in ("weights", "biases")}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Network:
        return Network(*([np.array(each, dtype=float) for each in value[name]] for name in ("weights", "biases")))

    def _layers(self, x: Array) -> list[Array]:
        """Return the input and each layer's output."""
        found = [x]
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = found[-1] @ weight + bias
            found.append(out if place == last else np.maximum(out, 0.0, out=out))
        return found


class Adam:
    """Adam (arXiv 1412.6980) over a network's parameters, with decoupled weight decay."""

    def __init__(self, network: Network, rate: float, decay: float = 0.0) -> None:
        self._network, self._rate, self._decay = network, rate, decay
        self._first = [np.zeros_like(each) for each in network.parameters]
        self._second = [np.zeros_like(each) for each in network.parameters]
        self._n_steps = 0

    def step(self, gradients: Sequence[Array]) -> None:
        """Move the parameters against the gradients."""
        self._n_steps += 1
        for value, gradient, first, second in zip(
            self._network.parameters, gradients, self._first, self._second, strict=True
        ):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            size = (first / (1 - 0.9**self._n_steps)) / (np.sqrt(second / (1 - 0.999**self._n_steps)) + 1e-8)
            value -= self._rate * (size + self._decay * value)


Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

N_COMPONENTS = 24
"""Principal components of the features that the networks see: fewer tasks than features would fit any order."""
N_HIDDEN = 24
N_HISTORY = 7
"""Features of the history, for each candidate: see `history_features`."""
PRIOR_WEIGHT = 12.0
"""Score per unit of the logarithm of predicted time: a candidate predicted 6 % slower is drawn half as often."""
MAX_CORRECTION = 0.5
"""Bound of the network's output: it moves a candidate as far as a predicted time that differs by 4 %. Unbounded, it
overfits the training tasks."""
TRUST = 0.5
"""Weight of neighbours at which half of the prediction's error is corrected."""


@dataclass
class Projection:
    """Standardizes features and projects them onto the principal components of the training tasks."""

    means: Array
    axes: Array
    """One column per component, divided by the features' and the component's standard deviations."""

    @staticmethod
    def fit(x: Array, n_components: int = N_COMPONENTS) -> Projection:
        deviations = x.std(axis=0)
        scales = np.where(deviations > 1e-9, deviations, np.inf)
        standard = (x - x.mean(axis=0)) / scales
        variances, axes = np.linalg.eigh(standard.T @ standard / len(x))  # `svd` does not converge on some tables
        kept = min(n_components, int((variances > 1e-12).sum()))
        spread = np.sqrt(np.maximum(variances[::-1][:kept], 1e-6))
        return Projection(x.mean(axis=0), axes[:, ::-1][:, :kept] / spread / scales[:, None])

    def __call__(self, x: Array) -> Array:
        projected: Array = np.clip((x - self.means) @ self.axes, -5.0, 5.0)
        return projected


@dataclass
class Pool:
    """The candidates of several tasks, padded: `x` [tasks, candidates, components], times relative to the default's.

    `priors` are predictions of `log_times` by a cost model that was not trained on the task. `near` are weights of
    neighbourhood between the candidates of a task: 1 for equal ones.
    """

    x: Array
    exists: Mask
    log_times: Array
    """Logarithm of time over the default's; 0 where padded, infinity where not measured yet. The default is candidate
    0."""
    near: Array
    priors: Array

    @staticmethod
    def of(features: Sequence[Array], times: Sequence[Array], priors: Sequence[Array]) -> Pool:
        """Return the pool of tasks, each with projected features, times and predicted logarithms of its candidates."""
        n, width = len(features), max(map(len, features))
        pool = Pool(
            np.zeros((n, width, features[0].shape[1])),
            np.zeros((n, width), dtype=bool),
            np.zeros((n, width)),
            np.zeros((n, width, width)),
            np.zeros((n, width)),
        )
        for place, (x, time, prior) in enumerate(zip(features, times, priors, strict=True)):
            size = len(x)
            pool.x[place, :size], pool.exists[place, :size] = x, True
            pool.log_times[place, :size] = np.log(time / time[0])
            pool.near[place, :size, :size] = neighbourhood(x)
            pool.priors[place, :size] = prior - prior[0]
        return pool

    def take(self, rows: Indices) -> Pool:
        """Return the pool of these tasks, in this order."""
        return Pool(self.x[rows], self.exists[rows], self.log_times[rows], self.near[rows], self.priors[rows])

    @property
    def best(self) -> Array:
        """Return the logarithm of each task's best time over the default's."""
        best: Array = np.where(self.exists, self.log_times, np.inf).min(axis=1)
        return best


def neighbourhood(x: Array) -> Array:
    """Return weights between candidates that fall with their squared distance, in units of the median."""
    distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    positive = distances[distances > 1e-9]
    weights: Array = np.exp(-4.0 * distances / (np.median(positive) if positive.size else 1.0))
    return weights


def history_features(pool: Pool, measured: Mask, left: float) -> Array:
    """Return for each candidate: the share of the budget that is left, the best logarithm of time so far, the mean over
    measured neighbours, their weight, the product of both, the predicted time, and the corrected prediction."""
    weights, times = pool.near * measured[:, None, :], np.where(measured, pool.log_times, 0.0)
    total = weights.sum(axis=2)
    mean = (weights * times[:, None, :]).sum(axis=2) / (total + 0.1)
    best = np.where(measured, pool.log_times, np.inf).min(axis=1)
    missed = (weights * (times - pool.priors)[:, None, :]).sum(axis=2) / (total + TRUST)
    shape = pool.exists.shape
    columns = [np.full(shape, left), np.broadcast_to(best[:, None], shape), mean, np.minimum(total, 2.0), mean * total]
    columns += [pool.priors, pool.priors + missed]
    return np.stack([np.clip(each, -3.0, 3.0) for each in columns], axis=2)


@dataclass
class Policy:
    """Scores candidates; higher is tried earlier."""

    network: Network

    @staticmethod
    def new(n_components: int, draw: np.random.Generator) -> Policy:
        return Policy(Network.new([n_components + N_HISTORY, N_HIDDEN, N_HIDDEN, 1], draw))

    def inputs(self, pool: Pool, measured: Mask, left: float) -> Array:
        """Return the network's inputs, a row for each place of the pool."""
        found: Array = np.concatenate([pool.x, history_features(pool, measured, left)], axis=2)
        return found

    def log_probabilities(self, inputs: Array, open_: Mask) -> Array:
        """Return the logarithm of the probability of each open candidate; minus infinity for others."""
        outputs = self.network(inputs.reshape(-1, inputs.shape[2])).reshape(open_.shape)
        scores = MAX_CORRECTION * np.tanh(outputs) - PRIOR_WEIGHT * inputs[:, :, -1]
        scores = np.where(open_, scores, -np.inf)
        top = scores.max(axis=1, keepdims=True)
        shifted = scores - np.where(np.isfinite(top), top, 0.0)
        total = np.exp(shifted).sum(axis=1, keepdims=True)
        logarithms: Array = shifted - np.log(np.maximum(total, 1e-300))
        return logarithms

    def gradients(self, inputs: Array, of_scores: Array) -> list[Array]:
        """Return the gradients of the network's parameters for the gradient of each row's score."""
        slopes = MAX_CORRECTION * (1.0 - np.tanh(self.network(inputs)) ** 2)
        return self.network.gradients(inputs, of_scores * slopes)

    def order(self, pool: Pool, n_picks: int) -> Indices:
        """Return the greedy order of candidates, the default first: each pick sees the times of those before."""
        measured = np.zeros(pool.exists.shape, dtype=bool)
        measured[:, 0] = True
        picked = [np.zeros(len(measured), dtype=np.int64)]
        for step in range(n_picks):
            inputs = self.inputs(pool, measured, (n_picks - step) / max(1, n_picks))
            choice = self.log_probabilities(inputs, pool.exists & ~measured).argmax(axis=1)
            measured[np.arange(len(choice)), choice] = True
            picked.append(choice)
        return np.stack(picked, axis=1)

    def order_at_once(self, pool: Pool) -> Indices:
        """Return the order of candidates by the scores before anything but the default was measured, the default
        first: the picks of one generation, which is measured together."""
        measured = np.zeros(pool.exists.shape, dtype=bool)
        measured[:, 0] = True
        logarithms = self.log_probabilities(self.inputs(pool, measured, 1.0), pool.exists & ~measured)
        logarithms[:, 0] = np.inf
        return np.argsort(-logarithms, axis=1, kind="stable")


class Critic:
    """Predicts what an episode will still gain from the mean of the open candidates and the history."""

    def __init__(self, n_components: int, draw: np.random.Generator) -> None:
        self.network = Network.new([n_components + N_HISTORY, N_HIDDEN, 1], draw)

    @staticmethod
    def inputs(of_policy: Array, open_: Mask) -> Array:
        """Return the mean of the policy's inputs over the open candidates."""
        weights = open_[:, :, None] / np.maximum(1, open_.sum(axis=1))[:, None, None]
        mean: Array = (of_policy * weights).sum(axis=1)
        return mean
