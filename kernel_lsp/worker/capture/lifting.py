"""Lift a module's parameters and buffers to arguments of the call, so that a capture can keep their sizes symbolic.

`torch.export` treats the sizes of a module's own parameters as constants. A task folder whose configurations build the
module in several sizes is captured this way, once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .inputs import CallInputs, StateOf, TensorLeaf
from .load import Callee
from .names import identifier


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's parameters and buffers by qualified name, in their order."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def lifted(callee: Callee, inputs: CallInputs, varying: Mapping[str, Sequence[int]]) -> tuple[Callee, CallInputs]:
    """Return the same call, with the module's state as inputs after the user's. `varying` names the dims of each that
    may become symbolic."""
    module, state = callee.owner, state_of(callee.owner)
    parameters = dict(module.named_parameters())
    leaves = [_leaf(name, tensor, name in parameters, varying.get(name, ())) for name, tensor in state.items()]
    n_own, names = len(inputs.tensors), list(state)

    def rebuild(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        positional, keywords = inputs.rebuild(tensors[:n_own])
        return [dict(zip(names, tensors[n_own:])), positional, keywords], {}

    def fresh() -> list[torch.Tensor]:
        own = inputs.fresh() if inputs.fresh is not None else []
        return [*own, *(tensor.detach().clone() for tensor in state.values())]

    def call(values: dict[str, torch.Tensor], positional: list[Any], keywords: dict[str, Any]) -> Any:
        return torch.func.functional_call(module, values, tuple(positional), keywords)

    own_values = {leaf.name: tensor.detach() for leaf, tensor in zip(leaves, state.values())}
    made = CallInputs(
        [*inputs.leaves, *leaves], rebuild, fresh if inputs.fresh is not None else None, inputs.notes, own_values
    )
    return Callee(call, None, list(callee.notes), module), made


def _leaf(name: str, tensor: torch.Tensor, is_parameter: bool, dims: Sequence[int]) -> TensorLeaf:
    role = "parameter" if is_parameter else "buffer"
    state = StateOf(role, name, is_parameter and tensor.requires_grad, tuple(dims))
    return TensorLeaf(identifier(name), tensor.dtype, tuple(tensor.shape), state=state)
