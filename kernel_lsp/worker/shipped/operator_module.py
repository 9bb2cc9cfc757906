"""Decide whether an operator can stand for a module's method, collect its arguments, and update the module's state.

The part below the imports is carried by the shared runtime of operator files and by each package, word for word.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .operator_settings import attribute, is_setting, setting_of
from .operator_support import DTYPES, Contract

# --- A module whose method is computed by an operator -----------------------------------------------------


_NEXT = "optimize this module, too"


class ModuleUse:
    """Arguments that a module's method gives the operator: `inputs` are the method's own arguments, `state` the
    parameters and buffers behind them. `settings` are attributes that the kernels have in them as constants, and `code`
    names the method and the classes of submodules, with their paths. `training` is the mode they were captured in,
    None where both modes compute the same; `modes` are those of submodules in the other one. `tied` are paths of
    parameters and submodules that are the same object as an earlier one. The operator's last results are the new values
    of the `updates`, buffers and attributes that the method changes, each "in place" or "assigned"; `counters` are
    buffers that it increases. Values of `graphs` have a graph if one of the inputs and states named there has."""

    def __init__(
        self,
        method: str,
        inputs: Sequence[str],
        state: Sequence[str],
        settings: Mapping[str, Any] | None = None,
        training: bool | None = None,
        modes: Mapping[str, bool] | None = None,
        code: Mapping[str, str | Sequence[str]] | None = None,
        tied: Mapping[str, str] | None = None,
        updates: Mapping[str, str] | None = None,
        counters: Mapping[str, int] | None = None,
        graphs: Mapping[str, str] | None = None,
    ) -> None:
        self.updates, self.counters = tuple(updates or {}), dict(counters or {})
        self.detached: frozenset[str] = frozenset()
        self.in_place = tuple([path for path, way in (updates or {}).items() if way == "in place"])
        self.assigned = tuple([path for path, way in (updates or {}).items() if way != "in place"])
        self.graphs = {path: names.split() for path, names in (graphs or {}).items()}
        self.method, self.inputs, self.state = method, tuple(inputs), tuple(state)
        self.settings, self.training, self.modes = dict(settings or {}), training, dict(modes or {})
        listed = {name: paths.split(" ") if isinstance(paths, str) else paths for name, paths in (code or {}).items()}
        self.code = {path: name for name, paths in listed.items() for path in paths}
        self.own_code, self.tied = self.code.pop("", ""), dict(tied or {})
        made_for = {**self.settings, **self.code}
        self.texts = {name: f"{name} is not {value}, as in these kernels: {_NEXT}" for name, value in made_for.items()}

    def why_never(self, kind: type) -> str:
        """Explain why the kernels cannot stand for modules of a class: its code is another one than the captured."""
        found = self._overridden(kind) if self.own_code else ""
        return self._other("this", found, self.own_code) if found else ""

    def _overridden(self, kind: type) -> str:
        """Return what a class has instead of the captured class's: another method, or one that this may call."""
        name = self.own_code.rpartition(".")[0]
        captured = next((each for each in kind.__mro__ if each.__qualname__ == name), None)
        if captured is None:
            return getattr(getattr(kind, self.method, None), "__qualname__", kind.__qualname__)
        for each in kind.__mro__[: kind.__mro__.index(captured)]:
            for member in () if "_kernel_operator" in vars(each) else vars(each):
                is_read = member in _CALLED or not (member.startswith("__") or member in _UNREAD)
                if is_read and hasattr(captured, member):
                    return f"{each.__qualname__}.{member}"
        return ""

    def why_not(self, module: torch.nn.Module) -> str:
        """Explain why the kernels cannot stand for this module; empty when they can."""
        for name, captured in self.settings.items():
            found = setting_of(attribute(module, name), captured, module)
            if not is_setting(found, captured):
                return self._other(name, found, captured)
        for path, captured in self.code.items():
            part = attribute(module, path)
            found = type(part).__name__
            if found != captured:
                return self._other(path, found, captured)
            if replaced := self._replaced(f"{path}.", part):
                return f"{path} has a '{replaced}' of its own, which kernels do not call: {_NEXT}"
            if self._has_hooks(path, part):
                return f"{path} has hooks, which kernels do not call: remove them, or put them on the whole module"
        if replaced := self._replaced("", module):
            return f"this module has a '{replaced}' of its own beside its class's"
        for path, first in self.tied.items():
            if attribute(module, path) is not attribute(module, first):
                return f"{path} is not {first}, as in these kernels: {_NEXT}"
        if self.training is not None:
            for path, part in module.named_modules():
                if part.training != self.modes.get(path, self.training):
                    return _OTHER_MODE[self.training]
        return ""

    def misfit(self, module: torch.nn.Module, contract: Callable[..., Contract], names: Sequence[str]) -> str:
        """Explain which parameter or buffer has a dtype or sizes that the kernels never take; empty where none has."""
        held = [attribute(module, path) for path in self.state]
        paths = dict(zip(names[len(names) - len(held) :], self.state))
        try:
            taken = contract(*[None] * (len(names) - len(held)), *held).inputs
        except (TypeError, ValueError, ArithmeticError):  # its sizes are functions of the inputs'
            return ""
        for label, (tensor, _) in taken.items():
            name, _, type_ = label.partition(": ")
            dtype, _, shape = type_[:-1].partition("[")
            dims = [dim for dim in shape.split(", ") if dim]
            if name in paths and isinstance(tensor, Tensor):
                differs = [int(dim) != size for dim, size in zip(dims, tensor.shape) if dim.isdigit()]
                if tensor.dtype != DTYPES[dtype] or tensor.dim() != len(dims) or any(differs):
                    found = next((name for name, each in DTYPES.items() if each == tensor.dtype), tensor.dtype)
                    return f"{paths[name]} is {found}{list(tensor.shape)}, and the kernels take {type_}: {_NEXT}"
        return ""

    def _replaced(self, prefix: str, part: Any) -> str:
        """Return a method that the instance has instead of its class's; empty where there is none. Compiled code asks
        for the method itself, which is what the compiler guards."""
        is_compiling = torch.compiler.is_compiling()
        for name in methods_of(type(part)):
            if is_compiling:
                held, own = getattr(part, name), getattr(type(part), name)
                is_own = getattr(held, "__func__", held) is getattr(own, "__func__", own)
            else:
                is_own = name not in part.__dict__
            if not is_own and prefix + name not in self.settings:
                return name
        return ""

    def _has_hooks(self, path: str, part: torch.nn.Module) -> bool:
        """Return True for hooks that kernels do not call. What PyTorch's own make a weight from, as `weight_norm` and
        `prune` do, is captured with them."""
        if part._forward_hooks or part._backward_hooks or part._backward_pre_hooks:
            return True
        for hook in part._forward_pre_hooks.values():
            made = getattr(hook, "name", getattr(hook, "_tensor_name", ""))
            if not type(hook).__module__.startswith("torch.nn.utils.") or f"{path}.{made}" in self.state:
                return True
        return False

    def _other(self, name: str, found: Any, captured: Any) -> str:
        """Explain a difference. In compiled code a number may be a symbol, which has no text."""
        if torch.compiler.is_compiling():
            return self.texts[name]
        found = "a tensor" if isinstance(found, Tensor) else found
        return f"{name} is {found}, and the kernels were made for {captured}: {_NEXT}"

    def detach_without(self, gradients: Sequence[str], argument_names: Sequence[str]) -> None:
        """Pass on those assigned states without their graphs for which the operator's backward has no gradient: the
        code detaches them."""
        of_state = zip(self.state, argument_names[len(self.inputs) :])
        without = [path for path, argument in of_state if argument not in gradients]
        self.detached = frozenset(self.assigned).intersection(without)

    def arguments(self, module: torch.nn.Module, given: Sequence[Any] | None) -> Any:
        """Return the operator's arguments from those of the method, or None for a call that was not captured."""
        held = [attribute(module, path) for path in self.state]
        if self.in_place and torch.is_grad_enabled():  # what autograd saves is not to change
            held = [value.clone() if path in self.in_place else value for path, value in zip(self.state, held)]
        if self.detached:
            held = [value.detach() if path in self.detached else value for path, value in zip(self.state, held)]
        return (
            None
            if given is None
            else (*given, *[each if isinstance(each, Tensor) else setting_of(each) for each in held])
        )

    def updated(self, module: torch.nn.Module, results: Any, arguments: Sequence[Any]) -> Any:
        """Update the state of the module as its method does, and return the results without the new values."""
        for path, increment in self.counters.items():
            attribute(module, path).add_(increment)
        if not self.updates:
            return results
        n_returned = len(results) - len(self.updates)
        new = dict(zip(self.updates, results[n_returned:]))
        if self.in_place:
            old = [attribute(module, path) for path in self.in_place]
            torch._foreach_copy_(old, [new[path].detach() for path in self.in_place])
        known = dict(zip((*self.inputs, *self.state), arguments))
        for path in self.assigned:
            prefix, _, name = path.rpartition(".")
            value, given = new[path], self.graphs.get(path)
            if given is not None and not any(known[each].requires_grad for each in given):
                value = value.detach()
            setattr(attribute(module, prefix) if prefix else module, name, value)
        return results[0] if n_returned == 1 else results[:n_returned]


def methods_of(kind: type) -> tuple[str, ...]:
    """Return the methods of a module's class that its instances may hide by an attribute. Compiled code takes the
    answer for constant."""
    return _methods_of(kind)


@functools.lru_cache(maxsize=256)
def _methods_of(kind: type) -> tuple[str, ...]:
    of_torch = (torch.nn.Module, object)
    members = {
        name: each for base in reversed(kind.__mro__) if base not in of_torch for name, each in vars(base).items()
    }
    kinds = (types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod)
    named = [name for name, each in members.items() if isinstance(each, kinds)]
    return tuple([name for name in named if not name.startswith("__") and name not in _UNREAD])


methods_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does
_CALLED = ("__call__", "__getattr__", "__getattribute__")
_UNREAD = ("extra_repr", "reset_parameters", "_abc_impl")
_OTHER_MODE = {
    False: "the kernels were made for eval mode, which computes something else: call .eval(), or run with --backward",
    True: "the kernels were made for training mode, which computes something else: run without --backward for eval",
}
