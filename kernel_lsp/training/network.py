"""A small multi-layer perceptron in numpy: forward, gradients, Adam, and the file that it is kept in."""

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
