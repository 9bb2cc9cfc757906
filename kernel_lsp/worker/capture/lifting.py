"""Lift a module's parameters and buffers, and the random tensors that the code draws, to arguments of the call.

With its state as arguments, a capture can keep their sizes symbolic; with its draws, the result is a function of them.

`torch.export` treats the sizes of a module's own parameters as constants. A task folder whose configurations build the
module in several sizes is captured this way, once for all of them.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from ..valid_names import identifier
from .exported_program import shapes_alone
from .inputs import CallInputs, StateOf, TensorLeaf
from .load import Callee

DROPOUT = "nn.functional.dropout"
CREATIONS = ("randn", "rand", "randn_like", "rand_like")
"""Functions of torch that return a new random tensor of floats."""
INTEGERS = ("randint", "randint_like")
"""Functions of torch that return a new random tensor of integers in a range."""
Draw = Callable[[], torch.Tensor]
Range = tuple[int, int]


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's parameters and buffers by qualified name, in their order."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def lifted(callee: Callee, inputs: CallInputs, varying: Mapping[str, Sequence[int]]) -> tuple[Callee, CallInputs]:
    """Return the same call, with the module's state as inputs after the user's. `varying` names the dims of each that
    may become symbolic."""
    module, state = callee.owner, state_of(callee.owner)
    parameters = dict(module.named_parameters())
    leaves = [_leaf(name, tensor, name in parameters, varying.get(name, ())) for name, tensor in state.items()]

    def values() -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in state.values()]

    def call(given: list[torch.Tensor], positional: list[Any], keywords: dict[str, Any]) -> Any:
        return torch.func.functional_call(module, dict(zip(state, given)), tuple(positional), keywords)

    own_values = {leaf.name: tensor.detach() for leaf, tensor in zip(leaves, state.values())}
    made = inputs.with_more(leaves, values, state=own_values)
    return Callee(call, None, list(callee.notes), module), made


def _leaf(name: str, tensor: torch.Tensor, is_parameter: bool, dims: Sequence[int]) -> TensorLeaf:
    role = "parameter" if is_parameter else "buffer"
    state = StateOf(role, name, is_parameter and tensor.requires_grad, tuple(dims))
    return TensorLeaf(identifier(name), tensor.dtype, tuple(tensor.shape), state=state)


def with_draws(callee: Callee, inputs: CallInputs) -> tuple[Callee, CallInputs]:
    """Return the same call with the tensors that it draws as inputs after the user's, in the order of the draws; the
    call itself where it draws in another way."""
    drawn = _recorded(callee, inputs)

    def draws() -> list[torch.Tensor]:
        return [_draw(name, leaf) for name, leaf in drawn]

    function = callee.call.forward if isinstance(callee.call, torch.nn.Module) else callee.call

    @functools.wraps(function)
    def call(values: list[torch.Tensor], positional: list[Any], keywords: dict[str, Any]) -> Any:
        with _Replay(values):
            return callee.call(*positional, **keywords)

    notes = [
        f"the code draws '{leaf.name}' (torch.{name}): it is an argument, drawn by the caller" for name, leaf in drawn
    ]
    made = inputs.with_more([leaf for _, leaf in drawn], draws, notes=[*inputs.notes, *notes])
    return replace(callee, call=call, notes=list(callee.notes), draws=max(1, len(drawn))), made


class _Draws(TorchFunctionMode, ABC):
    """Passes every random tensor that the code draws, or a mask of dropout, to `drawn`; integers where their range
    depends on no size."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if function is torch.nn.functional.dropout and _is_active(args, kwargs):
            return self._dropout(function, args, kwargs)
        if name in CREATIONS and function is getattr(torch, name):
            return self.drawn(name, lambda: function(*args, **kwargs))
        if name in INTEGERS and function is getattr(torch, name) and (limits := _range_of(args, kwargs)):
            return self.drawn(name, lambda: function(*args, **kwargs), limits)
        return function(*args, **kwargs)

    def _dropout(self, function: Any, args: Any, kwargs: Any) -> Any:
        given = {**dict(zip(("input", "p", "training", "inplace"), args)), **kwargs}
        value, rate = given["input"], given.get("p", 0.5)
        if rate in (0, 1) or given.get("inplace"):
            return function(*args, **kwargs)
        kept = self.drawn(DROPOUT, lambda: torch.empty_like(value, dtype=torch.bool))
        return value * kept / (1 - rate)

    @abstractmethod
    def drawn(self, name: str, draw: Draw, limits: Range | None = None) -> torch.Tensor: ...


class _Record(_Draws):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, torch.Tensor, Range | None]] = []

    def drawn(self, name: str, draw: Draw, limits: Range | None = None) -> torch.Tensor:
        made = draw()
        self.found.append((name, made, limits))
        return made


class _Replay(_Draws):
    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._values = iter(values)

    def drawn(self, name: str, draw: Draw, limits: Range | None = None) -> torch.Tensor:
        return next(self._values)


def _range_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Range | None:
    """Return the [low, high) of a call that draws integers; None where a bound depends on a size of the inputs."""
    given = [*args, *[kwargs[name] for name in ("low", "high") if name in kwargs]]
    low, high = [0, 0, *[each for each in given if isinstance(each, (int, torch.SymInt))]][-2:]
    return (low, high) if isinstance(low, int) and isinstance(high, int) and low < high else None


def _is_active(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return bool(args[2] if len(args) > 2 else kwargs.get("training", True))


def _recorded(callee: Callee, inputs: CallInputs) -> list[tuple[str, TensorLeaf]]:
    """Return the draws of one call on fake tensors, each with its function's name."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    record = _Record()
    # The user's code may raise anything on fake tensors; the capture then reports the random operation.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with contextlib.suppress(Exception), shapes_alone(), fake, torch.no_grad(), record:
        tensors = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in inputs.tensors]
        positional, keywords = inputs.rebuild(tensors)
        callee.call(*positional, **keywords)
    taken = {leaf.name for leaf in inputs.leaves}
    drawn = []
    for name, made, limits in record.found:
        stem = "kept" if name == DROPOUT else name
        free = next(unused for n in range(len(taken) + 1) if (unused := f"{stem}_{n}") not in taken)
        taken.add(free)
        shape = tuple(int(size) for size in made.shape)
        drawn.append((name, TensorLeaf(free, made.dtype, shape, integer_range=limits)))
    return drawn


def _draw(name: str, leaf: TensorLeaf) -> torch.Tensor:
    """Return new values of one draw."""
    if leaf.dtype == torch.bool:
        return torch.rand(leaf.shape) < 0.5
    if leaf.integer_range is not None:
        return torch.randint(*leaf.integer_range, leaf.shape, dtype=leaf.dtype)
    function: Callable[..., torch.Tensor] = torch.randn if name.startswith("randn") else torch.rand
    return function(leaf.shape, dtype=leaf.dtype)
