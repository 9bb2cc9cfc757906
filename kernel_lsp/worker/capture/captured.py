"""The data of one capture, and the captures that this process keeps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from ..cases.families import near_own_values, own_generator
from ..files import place_of, write_tensor
from ..operators import is_a
from .attribute_watch import AttributeWatch
from .backward import BackwardProgram
from .exported_program import Placeholder, Program, Wrapper
from .graph import GraphText
from .inputs import CallInputs, StateOf
from .load import Callee
from .symbols import Bounds, SymbolTable, expression_of, is_settled

LARGE_BYTES = 1 << 18
"""Bytes of a parameter from which all cases of a capture have the same noise, one file and one copy on a GPU: to draw
those of AlexNet, 244 MB, anew for each of 35 cases took a second of processor and as many bytes written each."""
SHARE_OF_DEVICE = 16
"""Divisor of a GPU's memory: that share may hold copies."""


@dataclass
class _Kept:
    """A parameter's values, and their version: code of the user's may write into a tensor."""

    value: torch.Tensor
    version: int
    entry: dict[str, Any] | None = None
    copy: torch.Tensor | None = None
    copy_version: int = 0


@dataclass
class KeptParameters:
    """The large parameters of one capture, by name."""

    by_name: dict[str, _Kept] = field(default_factory=dict)

    def near(self, name: str, own: torch.Tensor, seed: int) -> torch.Tensor:
        """Return a parameter near its own values: the same in all cases where it is large."""
        if own.nbytes < LARGE_BYTES:
            return near_own_values(own, own_generator(seed, "state", name))
        kept = self.by_name.get(name)
        if kept is None or kept.value._version != kept.version or kept.value.shape != own.shape:
            value = near_own_values(own, own_generator(0, "state", name))
            kept = self.by_name[name] = _Kept(value, value._version)
        return kept.value

    def on(self, value: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a tensor on a device; the copy of a large parameter is kept there."""
        kept = self._of(value)
        if kept is None or device.type != "cuda" or not self._may_stay(device):
            return value.to(device)
        if kept.copy is None or kept.copy.device != device or kept.copy._version != kept.copy_version:
            kept.copy = None
            kept.copy = value.to(device)
            kept.copy_version = kept.copy._version
        return kept.copy

    def write(self, path: str, name: str, value: torch.Tensor) -> dict[str, Any]:
        """Write a tensor and return its entry of the answer; a large parameter has one file."""
        kept = self._of(value)
        if kept is None:
            return write_tensor(path, name, value)
        if kept.entry is None or not os.path.exists(place_of(kept.entry["path"])):
            kept.entry = write_tensor(path, name, value)
        return {**kept.entry, "name": name}

    def _of(self, value: torch.Tensor) -> _Kept | None:
        found = (kept for kept in self.by_name.values() if kept.value is value and value._version == kept.version)
        return next(found, None)

    def _may_stay(self, device: torch.device) -> bool:
        n_bytes = sum(kept.value.numel() * kept.value.element_size() for kept in self.by_name.values())
        return n_bytes * SHARE_OF_DEVICE <= torch.cuda.get_device_properties(device).total_memory


@dataclass(frozen=True)
class Argument:
    """A tensor argument of the operator: its name, and the placeholder it stands for."""

    name: str
    placeholder: Placeholder
    position: int
    """Its index among the placeholders."""


@dataclass(frozen=True)
class ModuleNumber:
    """A float attribute of the module that is an argument of the operator: its name, its path and its value."""

    name: str
    path: str
    value: float


@dataclass
class Captured:
    """The data of one capture."""

    source: dict[str, Any]
    callee: Callee
    inputs: CallInputs
    wrapper: Wrapper
    program: Program
    backward: BackwardProgram | None
    symbols: SymbolTable
    captured_sizes: dict[sympy.Symbol, int]
    bounds: dict[sympy.Symbol, Bounds]
    arguments: list[Argument]
    output_names: list[str]
    forward_text: GraphText
    backward_text: GraphText | None
    constants: dict[str, torch.Tensor]
    notes: list[str] = field(default_factory=list)
    configuration: int = 0
    mode: bool | None = None
    """Value of `training` at the capture of a module; None where the other mode computes the same."""
    module_numbers: list[ModuleNumber] = field(default_factory=list)
    free_settings: set[str] = field(default_factory=set)
    """Paths of the module's floats for which the capture holds whatever their value: arguments, and unused ones."""
    number_texts: dict[tuple[str, int | str], str] = field(default_factory=dict)
    """Text of each number of the caller in the graph that the reference is printed from, by node and argument."""
    separable: dict[sympy.Symbol, bool] = field(default_factory=dict)
    """Symbols along whose dim slices were tried, and whether each is computed from its own inputs alone."""
    observed: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    """[low, high) of the integers that `get_inputs` makes, by input; empty until a case needs one."""
    kept: KeptParameters = field(default_factory=KeptParameters)
    attributes: AttributeWatch = field(default_factory=AttributeWatch)
    """The attributes that the captured calls have read."""
    coverage: Any = None
    """The coverage of a task folder, as `configurations.Coverage`."""

    def has(self, *kinds: str) -> bool:
        """Check whether the forward has an operator of one of these kinds, as in `operators.json`."""
        return any(is_a(node["op"], *kinds) for node in self.forward_text.nodes)

    @property
    def has_symbolic_state(self) -> bool:
        """Check whether some parameter or buffer has a dim that may change."""
        return any(
            self.state_name(argument) is not None
            and any(isinstance(size, torch.SymInt) and not is_settled(size) for size in fake.shape)
            for argument in self.arguments
            for fake in [self.program.fake_inputs[argument.position]]
        )

    def role(self, argument: Argument) -> str:
        """Return input, parameter, buffer or constant, as in the user's code."""
        state = self._state(argument)
        return argument.placeholder.role if state is None else state.role

    def state_name(self, argument: Argument) -> str | None:
        """Return the qualified name of a parameter or buffer; None for any other argument."""
        state = self._state(argument)
        if state is not None:
            return state.name
        return argument.placeholder.qualified_name if argument.placeholder.role != "input" else None

    def requires_grad(self, argument: Argument) -> bool:
        """Check whether a parameter requires its gradient."""
        state = self._state(argument)
        return bool(argument.placeholder.value.requires_grad) if state is None else state.requires_grad

    def _state(self, argument: Argument) -> StateOf | None:
        index = argument.placeholder.index
        return self.inputs.tensors[index].state if argument.placeholder.role == "input" else None


def bind_sizes(captured: Captured, shapes: Mapping[str, Sequence[int]]) -> tuple[dict[Any, int], str]:
    """Return the size of every symbol, and computed size, from the shapes of the arguments; and what does not fit: a
    different fixed dim, or a symbol with two sizes."""
    sizes: dict[Any, int] = {}
    for argument in captured.arguments:
        fake, shape = captured.program.fake_inputs[argument.position], shapes.get(argument.name, ())
        if len(shape) != fake.dim():
            return sizes, f"'{argument.name}' has {len(shape)} dims, captured with {fake.dim()}"
        for position, (declared, size) in enumerate(zip(fake.shape, shape)):
            expression = expression_of(declared)
            wanted = int(declared) if expression is None else sizes.setdefault(expression, size)
            if size != wanted:
                return sizes, f"dim {position} of '{argument.name}' is {size}, and the capture has {wanted} there"
    return sizes, ""


def is_lifted(argument: Argument) -> bool:
    """Check whether the argument is a tensor that the code builds from numbers, not an attribute of a module."""
    return argument.placeholder.role == "constant" and argument.placeholder.qualified_name.startswith("lifted_tensor")


@dataclass
class _Warm:
    """The kept captures. `others` are those of further configurations of the same task folder, by their number."""

    captured: Captured | None = None
    others: dict[int, Captured] = field(default_factory=dict)

    def find(self, configuration: int) -> Captured | None:
        return self.others.get(configuration) if configuration else self.captured


WARM = _Warm()
"""The last capture of this process."""
