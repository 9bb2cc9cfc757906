"""Modes and settings of a module: which mode is captured, whether the other one computes the same, and which plain
attributes are constants in the captured graph."""

from __future__ import annotations

import collections
import contextlib
import enum
import types
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from ..shipped.operator_settings import (
    EXACT_NUMBERS,
    NESTED,
    UNCOMPARABLE,
    WITH_CODE,
    attribute,
    setting_text,
    slots_of,
)
from .attempt import Attempt
from .attribute_reads import MAX_DEPTH, OWN_ATTRIBUTES, NamesRead, computed_attributes, named_parts, names_read
from .attribute_watch import AttributeWatch
from .captured import Captured
from .load import Callee

TRAINING = "training"
MODULE_KINDS = ("module", "method")
"""Kinds of targets whose mode is ours to choose: benchmarks define their own."""
TOLD_BY_SHAPES = frozenset(
    "in_features out_features in_channels out_channels num_features num_channels num_embeddings embedding_dim "
    "normalized_shape affine elementwise_affine output_padding transposed training call_super_init "
    "dump_patches num_batches_tracked".split()
)
"""Attributes that the parameters' shapes determine, or that do not affect values."""
MAX_VALUES = 32
"""Maximum entries of a dictionary or a list that are stated each by name, whether the code names them or not."""
MAX_NAMED = 256
"""Maximum values below an attribute: a larger object is data, not a setting."""
MAX_LEAVES = 1024
"""Maximum constants of a nested container that are compared at each call: some 0.2 ms. A longer one that the code can
read is left to PyTorch."""
UNWATCHED = AttributeWatch()
PLAIN = (int, bool, float, str)
CONSTANTS = (*PLAIN, complex, bytes, type(None), range, slice, torch.dtype, torch.device, enum.Enum, *EXACT_NUMBERS)
"""Values that compiled code can compare in a container."""


def choose_mode(callee: Callee, kind: str, with_backward: bool) -> None:
    """Put a module into eval mode where no backward is asked for: inference runs it so."""
    if kind in MODULE_KINDS and not with_backward and callee.owner is not None:
        callee.owner.eval()


def method_of(source: Mapping[str, Any]) -> str:
    """Return the name of the method that is captured of a module or an object."""
    return str(source["symbol"]).rpartition(".")[2] if source["kind"] == "method" else "forward"


def mode_settings(owner: torch.nn.Module, mode: bool) -> dict[str, bool]:
    """Return the module's mode (True in training) and, by qualified name, that of each submodule in the other mode,
    such as a frozen batch norm. Dropouts are left out: a captured one is inactive."""
    dropout = torch.nn.modules.dropout._DropoutNd
    others = (path for path, m in owner.named_modules() if m.training != mode and not isinstance(m, dropout))
    return {TRAINING: mode, **{f"{path}.{TRAINING}": not mode for path in others if path}}


def module_settings(
    owner: Any, method: str = "forward", *, is_eval: bool = False, watch: AttributeWatch = UNWATCHED
) -> dict[str, Any]:
    """Return the settings by qualified name, e.g. ``{"norm.eps": 1e-06, "conv.stride": [2, 2]}``; empty for a function.
    They are public attributes of torch's modules and, of the user's objects, those that `method` and what it calls can
    read, with what these hold: ``config.width``, ``act.__name__``. With `is_eval` the rate of a dropout is left out: it
    affects nothing in eval mode. What the `watch` over the captured calls did not see read is left out, too."""
    settings: dict[str, Any] = {}
    parts = named_parts(owner)
    read = names_read([part for _, part in parts], method)
    for path, module in parts:
        if is_eval and isinstance(module, torch.nn.modules.dropout._DropoutNd):
            continue
        is_torchs = type(module).__module__.startswith("torch.")
        seen = watch.names_of(module)
        for name, held in {**_class_values(type(module)), **vars(module)}.items():
            if seen is not None and name not in seen and name in vars(module):
                continue
            value = _python_number(held)
            is_read = not name.startswith("_") and _has_text(value) if is_torchs else name in read
            if name in TOLD_BY_SHAPES or name in OWN_ATTRIBUTES or not is_read:
                continue
            settings.update(_plain_values(f"{path}.{name}" if path else name, value, read, owner, watch))
        if not is_torchs:
            settings.update(_absent(path, module, read, seen))
    return settings


def _absent(path: str, value: Any, read: NamesRead, seen: frozenset[str] | None) -> dict[str, None]:
    """Return the names by path that the code reads where they are, and which an object or a dictionary lacks."""
    asked = read.keys if isinstance(value, dict) else read.optional
    asked = asked if seen is None else asked & seen
    names = [name for name in sorted(asked) if "." not in name and attribute(value, name) is None]
    return {f"{path}.{name}" if path else name: None for name in names}


def _class_values(kind: type) -> dict[str, Any]:
    """Return plain values and containers that the user's classes of a module define: an instance may have others."""
    classes = [each for each in reversed(kind.__mro__) if not each.__module__.startswith("torch.")]
    members = [(name, value) for each in classes for name, value in vars(each).items() if not name.startswith("__")]
    return {name: value for name, value in members if isinstance(value, (*CONSTANTS, *NESTED))}


def module_code(owner: Any, method: str, *, is_eval: bool = False) -> dict[str, str]:
    """Return the class of each submodule, and the class and method that are captured,
    ``{"": "Block.forward", "act": "ReLU"}``: another one computes something else. A dropout does not in eval mode."""
    dropout = torch.nn.modules.dropout._DropoutNd
    parts = [(path, part) for path, part in named_parts(owner) if not (is_eval and isinstance(part, dropout))]
    own = {"": f"{type(owner).__qualname__}.{method}"} if parts else {}
    return own | {path: type(part).__name__ for path, part in parts if path}


def module_ties(owner: Any) -> dict[str, str]:
    """Return the paths of submodules and parameters that are the same object as an earlier one, with its path: the
    kernels take the first alone."""
    if not isinstance(owner, torch.nn.Module):
        return {}
    ties: dict[str, str] = {}
    for named in (owner.named_modules, owner.named_parameters, owner.named_buffers):
        first: dict[int, str] = {}
        for path, value in named(remove_duplicate=False):
            is_inside = any(path.startswith(f"{outer}.") for outer in ties)
            if first.setdefault(id(value), path) != path and not is_inside:
                ties[path] = first[id(value)]
    return ties


def _plain_values(
    path: str, value: Any, read: NamesRead, owner: Any, watch: AttributeWatch, depth: int = MAX_DEPTH
) -> dict[str, Any]:
    """Return the values below an attribute that compare by their text and whose names are `read`, by path. Of what has
    no text, such as tensors and modules, there are none."""
    if _has_text(value):
        return {path: list(value) if isinstance(value, tuple) else value}
    if isinstance(value, torch.dtype):
        return {path: str(value)}
    if isinstance(value, enum.Enum):
        return {f"{path}.name": value.name}
    if isinstance(value, WITH_CODE) or _holds_functions(value):
        return {path: setting_text(value, owner)}
    if _is_nested(value):
        leaves = [*islice(_leaves(value), MAX_LEAVES + 1)]
        if all(isinstance(each, CONSTANTS) for each in leaves):
            return {path: setting_text(value, owner) if len(leaves) <= MAX_LEAVES else UNCOMPARABLE}
        if len(leaves) > MAX_VALUES and not isinstance(value, dict):
            return {}
        entries = enumerate(value if depth and isinstance(value, (list, tuple)) else ())
        of_entries = [_plain_values(f"{path}.{n}", each, read, owner, watch, depth - 1) for n, each in entries]
        found = {name: each for values in of_entries for name, each in values.items()}
        return {**found, f"{path}.{len(value)}": None} if found else {}
    if not depth or isinstance(value, (torch.nn.Module, torch.Tensor, types.ModuleType)):
        return {}
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return {f"{path}.__name__": value.__name__}
    members = [each for base in type(value).__mro__ for name, each in vars(base).items() if name in read]
    has_code = any(isinstance(each, types.FunctionType) for each in members)
    found = {f"{path}.__class__.__name__": type(value).__name__} if has_code else {}
    inside = {name: each for name, each in _inside(value).items() if isinstance(name, str) and "." not in name}
    seen = watch.names_of(value)
    inside = inside if seen is None else {name: each for name, each in inside.items() if name in seen}
    named = [name for name in inside if name in read]
    computed = {name: each for name, each in computed_attributes(value, read, seen).items() if name not in inside}
    found.update({f"{path}.{name}": each for name, each in computed.items() if _has_text(each)})
    for name in inside if isinstance(value, dict) and len(inside) <= MAX_VALUES else named:
        found.update(_plain_values(f"{path}.{name}", _python_number(inside[name]), read, owner, watch, depth - 1))
    found.update(_absent(path, value, read, seen))
    return found if len(found) <= MAX_NAMED else {}


def _holds_functions(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(each, WITH_CODE) for each in value)


def _is_nested(value: Any) -> bool:
    """Return True for a container, or a plain value, that settings state as text: what it holds has no name."""
    if isinstance(value, dict):
        return not all(isinstance(name, str) and "." not in name for name in value)
    return isinstance(value, NESTED) and not hasattr(value, "_fields")


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values in a container, and in those inside."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _inside(value: Any) -> dict[Any, Any]:
    """Return what an object holds by name."""
    if isinstance(value, dict):
        return value
    return dict(getattr(value, "_asdict", lambda: slots_of(value) | getattr(value, "__dict__", {}))())


def _python_number(value: Any) -> Any:
    """Return a number or an array of numpy as Python's; all else as it is."""
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


def has_running_statistics(owner: Any) -> bool:
    """Tell whether the mode decides between a batch's statistics and running ones."""
    norm = torch.nn.modules.batchnorm._NormBase
    modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
    return any(isinstance(module, norm) and module.track_running_stats for module in modules)


@contextlib.contextmanager
def watched_mode(owner: Any) -> Iterator[list[str]]:
    """List a module's class for each time that code asks for its mode: `training` is a property meanwhile."""
    reads: list[str] = []
    if not isinstance(owner, torch.nn.Module):
        yield reads
        return
    watched = {id(module) for module in owner.modules()}

    def read(self: torch.nn.Module) -> bool:
        if id(self) in watched:
            reads.append(type(self).__name__)
        if TRAINING not in vars(self):
            raise AttributeError(TRAINING)
        return bool(vars(self)[TRAINING])

    def write(self: torch.nn.Module, mode: bool) -> None:
        vars(self)[TRAINING] = mode

    torch.nn.Module.training = property(read, write)  # type: ignore[assignment]  # for a time
    try:
        yield reads
    finally:
        del torch.nn.Module.training


def is_same_in_other_mode(captured: Captured, again: Attempt) -> bool:
    """Capture the module again in the other mode, and compare the graphs. The modes are left as they were."""
    owner = captured.callee.owner
    before = {module: module.training for module in owner.modules()}
    try:
        owner.train(not owner.training)
        return _computation(again.run(with_backward=False)) == _computation(captured)
    except Exception:  # whatever the other mode raises, as dropout does, it is not the same computation
        return False
    finally:
        for module, mode in before.items():
            module.training = mode


def _computation(captured: Captured) -> tuple[Any, ...]:
    text = captured.forward_text
    return [argument.name for argument in captured.arguments], text.nodes, text.outputs, captured.program.mutations


def _has_text(value: Any) -> bool:
    """Tell whether a value compares by its text: a number, a string, None, or several of them."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return all(not isinstance(each, (list, tuple)) and _has_text(each) for each in value)
    return value is None or (type(value) in PLAIN and value == value)  # NaN equals nothing
