"""Make a target's inputs: from the pragma, from `get_inputs()`, or from a task folder's configuration.

The user's `get_inputs` first runs on fake tensors, which know their shape and hold no data: a capture needs no
values.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Union

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..failure import TargetFailure
from ..files import plan_dtype, torch_dtype
from ..large_random import untouched
from ..valid_names import identifier
from .load import LoadedFile, call_user, evaluated, find_symbol

CAPTURED_SCALARS = (bool, int, float)
KEEPS_VALUES = frozenset(("to", "long", "int", "view", "reshape", "contiguous"))


@dataclass(frozen=True)
class StateOf:
    """The parameter or buffer of the module that an input stands for; `dims` are those that may become symbolic."""

    role: str
    name: str
    requires_grad: bool
    dims: tuple[int, ...]


@dataclass(frozen=True)
class TensorLeaf:
    """A tensor among the inputs. `dim_names` has a name or None per dim; `integer_range` is [low, high). `state` is
    None for an input that the user passes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    dim_names: tuple[str | None, ...] = ()
    integer_range: tuple[int, int] | None = None
    state: StateOf | None = None

    def empty(self) -> torch.Tensor:
        """Return a tensor of the captured shape that takes no memory until it is touched, whatever its size."""
        return untouched(self.shape, self.dtype)


@dataclass(frozen=True)
class ScalarLeaf:
    """A Python number among the inputs: a constant of the capture."""

    name: str
    value: bool | int | float


Leaf = Union[TensorLeaf, ScalarLeaf]


@dataclass
class CallInputs:
    """The inputs of one call. `rebuild` restores tensors to their positions among the arguments. `fresh` makes the
    user's own values again; None where only shapes are known. `state` has the values of inputs that are a module's
    state."""

    leaves: list[Leaf]
    rebuild: Callable[[Sequence[torch.Tensor]], tuple[list[Any], dict[str, Any]]]
    fresh: Callable[[], list[torch.Tensor]] | None = None
    notes: list[str] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    """Arguments that are neither tensors nor numbers, by name, as Python literals."""
    structures: dict[str, str] = field(default_factory=dict)
    """Arguments that are tuples or lists of tensors, by name, with the names of the leaves in their place."""
    numbers: dict[str, int | float] = field(default_factory=dict)
    """Values of scalars in place of the given ones, by name; `rebuild` reads them."""

    @property
    def tensors(self) -> list[TensorLeaf]:
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorLeaf)]

    def with_more(
        self, leaves: Sequence[TensorLeaf], values: Callable[[], list[torch.Tensor]], **changes: Any
    ) -> CallInputs:
        """Return these with further tensors: a call takes a list of those, then the user's arguments and keywords."""
        n_own, own = len(self.tensors), self.fresh

        def rebuild(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
            positional, keywords = self.rebuild(tensors[:n_own])
            return [list(tensors[n_own:]), positional, keywords], {}

        fresh = None if own is None else lambda: [*own(), *values()]
        return replace(self, leaves=[*self.leaves, *leaves], rebuild=rebuild, fresh=fresh, **changes)


def inputs_of(loaded: LoadedFile, source: dict[str, Any], call: Callable[..., Any]) -> CallInputs:
    """Return the inputs that the target's source defines: its pragma or annotations first, then `get_inputs()`."""
    if source.get("inputs") is not None:
        return _described(loaded, source["inputs"], call)
    if source.get("has_get_inputs"):
        return generated(loaded, source, call, {})
    raise TargetFailure(
        f"unknown input shapes for `{source['symbol']}`",
        file=source["file"],
        line=source["line"],
        next_step=f"add above it: {source['example_pragma']}",
    )


def generated(
    loaded: LoadedFile, source: dict[str, Any], call: Callable[..., Any], settings: dict[str, Any]
) -> CallInputs:
    """Return the inputs of `get_inputs(**settings)`, named after the parameters of `call`."""
    get_inputs = find_symbol(loaded, "get_inputs", source["line"])
    given, ranges = _call_get_inputs(get_inputs, loaded.file, settings)
    positional, keywords = _as_call(given)
    flat, spec = pytree.tree_flatten((positional, keywords))
    names = _flat_names(positional, keywords, call)
    inputs = _Collector(loaded.file, source["line"], ranges)
    leaves = [inputs.leaf(name, value) for name, value in zip(names, flat)]
    places = [position for position, leaf in enumerate(leaves) if isinstance(leaf, TensorLeaf)]
    scalars = {leaf.name: position for position, leaf in enumerate(leaves) if isinstance(leaf, ScalarLeaf)}
    numbers: dict[str, int | float] = {}

    def rebuild(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        values = list(flat)
        for place, tensor in zip(places, tensors):
            values[place] = tensor
        for name, number in numbers.items():
            values[scalars[name]] = number
        return pytree.tree_unflatten(values, spec)

    def fresh() -> list[torch.Tensor]:
        again = call_user(get_inputs, "calling get_inputs()", loaded.file, **settings)
        values = pytree.tree_flatten(_as_call(again))[0]
        return [values[place].detach().cpu().contiguous() for place in places]

    kept = [leaf for leaf in leaves if leaf is not None]
    if not any(isinstance(leaf, TensorLeaf) for leaf in kept):
        raise TargetFailure("get_inputs() returns no tensor", file=loaded.file, next_step="return a list of tensors")
    given_by_name = {**dict(zip(_positional_names(call), positional)), **keywords}
    spelled = {name: _spelled(name, value) for name, value in given_by_name.items()}
    others = {name: text for name, text in spelled.items() if text is not None and text != identifier(name)}
    found = [leaf.name for leaf in kept if isinstance(leaf, TensorLeaf)]
    structures = {name: text for name, text in others.items() if _has_names(text, found)}
    constants = {name: text for name, text in others.items() if name not in structures and name not in scalars}
    made = CallInputs(kept, rebuild, fresh, inputs.notes, numbers=numbers)
    return replace(made, structures=structures, constants=constants)


def _has_names(text: str, names: Sequence[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(ast.parse(text, mode="eval")))


def _spelled(name: str, value: Any) -> str | None:
    """Return a value of `get_inputs` in Python, with names for tensors; None for what has no literal."""
    if isinstance(value, torch.Tensor):
        return identifier(name)
    if type(value) in (tuple, list):
        texts = [_spelled(f"{name}_{position}", part) for position, part in enumerate(value)]
        if None in texts:
            return None
        inside = ", ".join(map(str, texts)) + ("," if len(texts) == 1 and type(value) is tuple else "")
        return f"({inside})" if type(value) is tuple else f"[{inside}]"
    is_literal = value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))
    return repr(value) if is_literal else None


def _described(loaded: LoadedFile, described: Sequence[dict[str, Any]], call: Callable[..., Any]) -> CallInputs:
    every = [part for entry in described for part in entry.get("tensors") or [entry]]
    leaves = [_described_leaf(entry) for entry in every if entry["kind"] != "constant"]
    given = [entry for entry in described if entry["kind"] == "constant"]
    constants = {entry["name"]: entry["literal"] for entry in given if not entry.get("tensors")}
    structures = {entry["name"]: entry["literal"] for entry in given if entry.get("tensors")}
    constant_values = {name: evaluated(loaded.module, text) for name, text in constants.items()}
    by_position = _positional_names(call)
    numbers: dict[str, int | float] = {}

    def rebuild(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        remaining = iter(tensors)
        values = {
            leaf.name: next(remaining) if isinstance(leaf, TensorLeaf) else numbers.get(leaf.name, leaf.value)
            for leaf in leaves
        }
        values.update(constant_values)
        values.update([(name, _filled(ast.parse(text, mode="eval").body, values)) for name, text in structures.items()])
        leading = []
        for name in by_position:
            if name not in values:
                break
            leading.append(values.pop(name))
        return leading, values

    return CallInputs(leaves, rebuild, constants=constants, structures=structures, numbers=numbers)


def _filled(node: ast.expr, values: dict[str, Any]) -> Any:
    """Return the value of a structure, with the tensors that its names stand for, and take these out of `values`."""
    if isinstance(node, (ast.Tuple, ast.List)):
        parts = [_filled(part, values) for part in node.elts]
        return tuple(parts) if isinstance(node, ast.Tuple) else parts
    return values.pop(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _described_leaf(entry: dict[str, Any]) -> Leaf:
    if entry["kind"] == "scalar":
        return ScalarLeaf(entry["name"], entry["value"])
    limits = entry.get("integer_range")
    return TensorLeaf(
        entry["name"],
        torch_dtype(entry["dtype"]),
        tuple(entry["shape"]),
        tuple(entry.get("dim_names") or ()),
        (limits[0], limits[1]) if limits else None,
    )


class _RandintRanges(TorchFunctionMode):
    """Records the [low, high) of every `torch.randint`, by the identity of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[int, tuple[int, int]] = {}
        self._kept: list[Any] = []  # keep tensors alive: identities are reused

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if not isinstance(result, torch.Tensor):
            return result
        if name == "randint":
            numbers = [value for value in args if isinstance(value, int)]
            numbers += [kwargs[bound] for bound in ("low", "high") if bound in kwargs]
            self._remember(result, (0, *numbers)[-2:])
        elif name in KEEPS_VALUES and args and id(args[0]) in self.ranges:
            self._remember(result, self.ranges[id(args[0])])
        return result

    def _remember(self, result: torch.Tensor, limits: Any) -> None:
        self.ranges[id(result)] = (int(limits[0]), int(limits[1]))
        self._kept.append(result)


def _call_get_inputs(
    get_inputs: Callable[..., Any], file: str, settings: dict[str, Any]
) -> tuple[Any, dict[int, tuple[int, int]]]:
    """Return its result on fake tensors, or on real ones when it needs values, and the ranges of its integers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for mode in (FakeTensorMode(allow_non_fake_inputs=True), None):
        recorder = _RandintRanges()
        try:
            if mode is None:
                with recorder:
                    return call_user(get_inputs, "calling get_inputs()", file, **settings), recorder.ranges
            with mode, recorder:
                return call_user(get_inputs, "calling get_inputs()", file, **settings), recorder.ranges
        except TargetFailure:
            if mode is None:
                raise
    raise AssertionError("the loop returns or raises")


def _as_call(given: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(given, dict):
        return [], dict(given)
    if isinstance(given, torch.Tensor) or not isinstance(given, (list, tuple)):
        return [given], {}
    return list(given), {}


def _flat_names(positional: list[Any], keywords: dict[str, Any], call: Callable[..., Any]) -> list[str]:
    known = _positional_names(call)
    names: list[str] = []
    for position, value in enumerate(positional):
        name = known[position] if position < len(known) else f"input_{position}"
        names += _names_within(name, value)
    for name, value in keywords.items():
        names += _names_within(name, value)
    return names


def _names_within(name: str, value: Any) -> list[str]:
    """Return one name per leaf of a nested value: ``states_0``, ``states_1``, ``cache_key``."""
    if isinstance(value, dict):
        return [n for key, inner in value.items() for n in _names_within(identifier(f"{name}_{key}"), inner)]
    if isinstance(value, (list, tuple)):
        return [n for position, inner in enumerate(value) for n in _names_within(f"{name}_{position}", inner)]
    return [name] * len(pytree.tree_flatten(value)[0])


def _positional_names(call: Callable[..., Any]) -> list[str]:
    function = call.forward if isinstance(call, torch.nn.Module) else call
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


class _Collector:
    """Converts the values of one call into leaves, with notes on its changes."""

    def __init__(self, file: str, line: int, ranges: dict[int, tuple[int, int]]) -> None:
        self._file, self._line, self._ranges = file, line, ranges
        self.notes: list[str] = []

    def leaf(self, name: str, value: Any) -> Leaf | None:
        if isinstance(value, torch.Tensor):
            return self._tensor(identifier(name), value)
        if isinstance(value, CAPTURED_SCALARS):
            return ScalarLeaf(identifier(name), value)
        return None

    def _tensor(self, name: str, value: torch.Tensor) -> TensorLeaf:
        if value.layout != torch.strided:
            raise self._failure(f"input '{name}' is sparse ({value.layout})", "pass it as a dense tensor")
        plan_dtype(value.dtype, f"input '{name}'", self._file, self._line)
        if not value.is_contiguous():
            self.notes.append(f"input '{name}' is not contiguous as made: captured as a contiguous tensor")
        if value.device.type != "cpu":
            self.notes.append(f"input '{name}' is made on {value.device}: captured on the CPU")
        return TensorLeaf(name, value.dtype, tuple(value.shape), (), self._integer_range(value))

    def _integer_range(self, value: torch.Tensor) -> tuple[int, int] | None:
        if value.dtype.is_floating_point or value.dtype == torch.bool:
            return None
        return self._ranges.get(id(value))

    def _failure(self, message: str, next_step: str) -> TargetFailure:
        return TargetFailure(message, file=self._file, line=self._line, next_step=next_step)
