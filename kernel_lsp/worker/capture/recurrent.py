"""Shapes of recurrent layers without their steps: PyTorch's own shape functions run every step of every layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from torch._decomp import decomposition_table

RECURRENT = tuple(getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""Recurrent layers, which a captured forward keeps whole."""
KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


@contextlib.contextmanager
def shapes_alone() -> Iterator[None]:
    """Compute only the shapes of recurrent layers while the code is traced. A trace of 512 steps takes minutes."""
    before = {operator: dict(operator.py_kernels) for operator in RECURRENT}
    decompositions = {operator: decomposition_table[operator] for operator in RECURRENT}
    for operator in RECURRENT:
        _replace(operator, dict.fromkeys(KEYS, _shape_function(operator)))
        decomposition_table[operator] = _shape_function(operator)  # used by fake tensors of symbolic sizes
    try:
        yield
    finally:
        decomposition_table.update(decompositions)
        for operator, kernels in before.items():
            _replace(operator, kernels)


def _replace(operator: Any, kernels: dict[Any, Callable[..., Any]]) -> None:
    for key in KEYS:
        operator.py_kernels.pop(key, None)
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def _shape_function(operator: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    def shapes(
        value: torch.Tensor, states: Any, parameters: Sequence[torch.Tensor], has_biases: bool, *settings: Any
    ) -> tuple[torch.Tensor, ...]:
        _, _, _, is_bidirectional, _ = settings
        given = states if isinstance(states, (list, tuple)) else [states]
        n_units = parameters[1].shape[1] * (2 if is_bidirectional else 1)
        output = value.new_empty((value.shape[0], value.shape[1], n_units))
        return (output, *(state.new_empty(state.shape) for state in given))

    return shapes
