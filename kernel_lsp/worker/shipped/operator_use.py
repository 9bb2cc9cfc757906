"""An operator in place of a function or of a module's method, with the original code as its fallback.

The part below the imports is carried by the shared runtime of operator files and by each package, word for word.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from .operator_module import ModuleUse
from .operator_settings import code_digest
from .operator_support import (
    _CALLS,
    DTYPES,
    Calls,
    Contract,
    _autograd_in_operator,
    _empty_like,
    _gradients,
    _own,
    arrangement,
    fake_results,
    fell_back,
    kept_by_none,
    mismatch,
    outside,
    transformed,
    warn_once,
)

# --- The operator in place of a function or of a module's method ------------------------------------------


_NO_GRAD = (
    "gradients, while some of the code runs under torch.no_grad() or changes tensor.data: "
    "call it under torch.no_grad(), or detach there"
)
_PLAIN = (bool, int, float, str, bytes, torch.dtype, torch.device)
"""Kinds of arguments that compare by value."""
_MAX_USES = 16
"""Maximum functions whose use is kept: an applied edit has ``use_f(f)(x)`` at each call, which took 30 us."""
_OTHER_CALL = "called with other arguments than the captured call: {names}"


class Operator:
    """A PyTorch operator with its contract and its fallback. `call` takes the arguments of `reference`, and so does
    `contract`; those of the backward stand behind the gradients of the results and what it is `given` of the forward,
    by place among all that the forward returns. Of that the last `n_kept` are no results. `gradients` names the
    arguments whose gradients the backward returns, `captured` the numbers that the reference has in it as constants,
    `constants` the other arguments of the captured call: strings, sequences, None. `structures` are parameters of the
    code that are no arguments of their own; `CapturedArguments` has their syntax.
    `returns` arranges results as the original code returns them, in classes whose modules its defaults name.
    `no_grad` says that some of the code runs without gradients, which the reference does not; `code` is the digest of
    the code that was captured."""

    def __init__(
        self,
        name: str,
        module_name: str,
        call: Callable[..., Any],
        contract: Callable[..., Contract],
        reference: Callable[..., Any],
        *,
        backward_contract: Callable[..., Contract] | None = None,
        gradients: Sequence[str] = (),
        captured: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None,
        structures: Mapping[str, str] | None = None,
        module: ModuleUse | None = None,
        given: Sequence[int] = (),
        n_kept: int = 0,
        returns: Callable[..., Any] | None = None,
        no_grad: bool = False,
        code: str = "",
    ) -> None:
        self.name, self.contract, self.reference = name, contract, reference
        self.returns, self.no_grad, self.code = returns, no_grad, code
        self.call = _results_of(call, n_kept) if n_kept else call
        self.given, self.n_kept = tuple(given), n_kept
        self.module, self.captured, self.module_name = module, dict(captured or {}), module_name
        self.constants, self.structures = dict(constants or {}), dict(structures or {})
        self._not_captured = {
            each: f"{each} is not {value}, the captured value, which gradients need"
            for each, value in self.captured.items()
        }
        self.backward_contract, self.gradients = backward_contract, tuple(gradients)
        own = contract.__code__
        self.argument_names = own.co_varnames[: own.co_argcount]
        self.key = f"{name}@{module_name}"
        self._classes: dict[type, type] = {}
        self._uses: dict[Callable[..., Any], FunctionUse] = {}
        if module is not None and backward_contract is not None:
            module.detach_without(self.gradients, self.argument_names)
        _CALLS[self.key] = Calls()

    def __reduce__(self) -> Any:
        return _operator_of, (self.module_name,)

    def __call__(self, *arguments: Any) -> Any:
        """Compute by the kernels inside the contract, by the captured PyTorch code outside."""
        reason = self.outside(arguments)
        if reason:
            fell_back(self.key, reason)
            return self.reference(*arguments)
        return self.call(*arguments)

    def outside(self, arguments: Sequence[Any]) -> str:
        """Explain why the kernels cannot take the arguments; empty when they can."""
        return transformed() or outside(self.contract(*arguments))

    def calls(self) -> dict[str, dict[str, int]]:
        """Count the calls so far that PyTorch computed, by reason; compiled code counts once per compilation."""
        return {"fallback": dict(_CALLS[self.key].fallback)}

    # the fallback

    def forward_by_pytorch(self, *arguments: Any) -> Any:
        """Compute the results by the reference, in tensors of their own as an operator must return them."""
        inputs = [value for value in arguments if isinstance(value, Tensor)]
        with torch.autocast(inputs[0].device.type, enabled=False):
            results = self.reference(*arguments)
        owned = _own((results,) if isinstance(results, Tensor) else results, inputs)
        returned = owned + kept_by_none(self.contract(*arguments)) if self.n_kept else owned
        return returned[0] if isinstance(results, Tensor) and not self.n_kept else returned

    def backward_by_pytorch(self, *arguments: Any) -> Any:
        """Compute the gradients that the kernels would: the reference again, under autograd."""
        n_before = len(arguments) - len(self.argument_names)
        result_gradients = arguments[: n_before - len(self.given)]
        needed = [name in self.gradients for name in self.argument_names]
        with _autograd_in_operator():
            found = _gradients(self.reference, arguments[n_before:], needed, result_gradients)
        by_name = dict(zip(self.argument_names, found))
        results = [by_name[name] for name in self.gradients]
        owned = _own(results, [value for value in arguments if isinstance(value, Tensor)])
        return owned if len(owned) > 1 else owned[0]

    def fake_forward(self, *arguments: Any) -> Any:
        """Return results without data, for tracing and `torch.compile`."""
        contract = self.contract(*arguments)
        if not mismatch(contract):
            return fake_results(contract)
        results = self.reference(*arguments)
        if isinstance(results, Tensor) and not self.n_kept:
            return _empty_like(results)
        listed = (results,) if isinstance(results, Tensor) else results
        return (*map(_empty_like, listed), *kept_by_none(contract))

    def fake_backward(self, *arguments: Any) -> Any:
        """Return gradients without data, for tracing and `torch.compile`."""
        assert self.backward_contract is not None
        contract = self.backward_contract(*arguments)
        if not mismatch(contract):
            return fake_results(contract)
        given = dict(zip(self.argument_names, arguments[-len(self.argument_names) :]))
        results = tuple([_empty_like(given[name]) for name in self.gradients])
        return results[0] if len(results) == 1 else results

    # in place of PyTorch code

    def why_not(self, arguments: Sequence[Any]) -> str:
        """Explain why the original code must compute these arguments; empty when the kernels can."""
        reason = self.outside(arguments)
        if reason or not (self.captured or self.no_grad) or not torch.is_grad_enabled():
            return reason
        if any(isinstance(value, Tensor) and value.requires_grad for value in arguments):
            if self.no_grad:
                return _NO_GRAD
            for name, value in zip(self.argument_names, arguments):
                if name in self.captured and value != self.captured[name]:
                    return self._not_captured[name]
        return ""

    def use_in(self, module: torch.nn.Module, report: bool) -> torch.nn.Module:
        """Have the module's method computed by the operator, and return the module."""
        assert self.module is not None
        self._report(report)
        kind = type(module)
        is_used = getattr(kind, "_kernel_operator", None) is self
        kinds = frozenset([type(part) for part in module.modules()])
        reason = "" if is_used else self._edited(getattr(kind, self.module.method), kinds) or self._swap_class(module)
        reason = reason or self.module.why_never(kind) or self.module.why_not(module)
        reason = reason or self.module.misfit(module, self.contract, self.argument_names)
        if reason:
            warn_once(self.key, reason)
        elif report:
            print(f"{self.name}: {kind.__name__} uses its CUDA kernels")
        return module

    def use(self, original: Callable[..., Any], defaults: Any = None, report: bool = False) -> Callable[..., Any]:
        """Return `original`, computed by the operator where it can be. Its own defaults count: `defaults`, the captured
        numbers, are what earlier files state."""
        is_kept = isinstance(original, FunctionType) and not torch.compiler.is_compiling()
        if is_kept and not report and original in self._uses:
            return self._uses[original]
        self._report(report)
        if reason := self._edited(original, frozenset()):
            warn_once(self.key, reason)
            return original
        if report:
            print(f"{self.name}: {getattr(original, '__name__', 'the function')} uses its CUDA kernels")
        used = FunctionUse(self, original)
        if is_kept and len(self._uses) < _MAX_USES:
            self._uses[original] = used
        return used

    def _edited(self, entry: Callable[..., Any], kinds: frozenset[type]) -> str:
        """Explain that code is not the captured one; empty where it is, and where its source is not known."""
        is_same = not self.code or not isinstance(entry, Hashable) or code_digest(entry, kinds) in ("", self.code)
        return "" if is_same else f"the code has changed since {self.name} was made from it: optimize it again"

    def _report(self, is_wanted: bool) -> None:
        calls = _CALLS[self.key]
        calls.is_reported = calls.is_reported or is_wanted

    def _swap_class(self, module: torch.nn.Module) -> str:
        """Give the module a class whose method asks the operator first; explain what prevents it."""
        assert self.module is not None
        if self.module.method in vars(module):
            return f"this module has a '{self.module.method}' of its own beside its class's"
        try:
            module.__class__ = self.class_over(type(module))
        except (TypeError, AttributeError) as error:
            return f"the class of this module cannot be extended: {error}"
        return ""

    def class_over(self, base: type) -> type:
        """Return the subclass of a module's class whose method asks the operator first."""
        if base not in self._classes:
            assert self.module is not None
            names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
            members = {self.module.method: _method(self, base), "__reduce_ex__": _reduce_used}
            self._classes[base] = type(base.__name__, (base,), {**names, **members, "_kernel_operator": self})
        return self._classes[base]


class FunctionUse:
    """A function computed by an operator where it can be, by its own code everywhere else."""

    def __init__(self, operator: Operator, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._operator, self._original = operator, original
        self._captured = CapturedArguments(operator.argument_names, original, operator.constants, operator.structures)
        self._arranged, self._never = arrangement(operator.returns, original)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        arguments = self._captured.of(inputs, keywords)
        if arguments is None:
            reason = self._captured.other(inputs, keywords)
        else:
            reason = self._never or self._operator.why_not(arguments)
        if not reason:
            return self._arranged(self._operator.call(*arguments))
        fell_back(self._operator.key, reason)
        return self._original(*inputs, **keywords)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the function's name where it names this: in a program that has ``f = use_f(f)`` the original has no
        name of its own, by which it could be pickled."""
        named: Any = sys.modules.get(self._original.__module__)
        for name in self._original.__qualname__.split("."):
            named = getattr(named, name, None)
        return self._original.__qualname__ if named is self else (FunctionUse, (self._operator, self._original))


def _results_of(call: Callable[..., Any], n_kept: int) -> Callable[..., Any]:
    """Return the operator's call without what the backward alone needs."""

    def results(*arguments: Any) -> Any:
        found = call(*arguments)[:-n_kept]
        return found[0] if len(found) == 1 else found

    return results


def _method(operator: Operator, base: type) -> Callable[..., Any]:
    """Return the method of `Operator.class_over`: the operator inside its contract, the class's own code outside."""
    use = operator.module
    assert use is not None
    own = getattr(base, use.method)
    captured = CapturedArguments(use.inputs, own, operator.constants, operator.structures, is_method=True)
    arranged, never = arrangement(operator.returns, own)
    never = use.why_never(base) or never

    def computed(self: Any, *inputs: Any, **keywords: Any) -> Any:
        arguments = use.arguments(self, captured.of(inputs, keywords))
        reason = never or use.why_not(self)
        if arguments is None:
            reason = captured.other(inputs, keywords)
        reason = reason or operator.why_not(arguments)
        if not reason:
            return arranged(use.updated(self, operator.call(*arguments), arguments))
        fell_back(operator.key, reason)
        return own(self, *inputs, **keywords)

    return functools.wraps(own)(computed)


def _reduce_used(self: Any, protocol: Any) -> Any:
    """Pickle as the class below does, and use the operator again: the class here has no name of its own."""
    used = type(self)
    try:
        self.__class__ = used.__base__
        make, arguments, *state = self.__reduce_ex__(protocol)
    finally:
        self.__class__ = used
    return (_used_again, (used._kernel_operator, make, arguments), *state)


def _used_again(operator: Operator, make: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    module = make(*arguments)
    module.__class__ = operator.class_over(type(module))
    return module


def _operator_of(module_name: str) -> Operator:
    return importlib.import_module(module_name).OPERATOR  # type: ignore[no-any-return]


class CapturedArguments:
    """The arguments of an operator in a call of the code that it replaces. Positions and defaults are that code's own:
    it may have parameters that were not captured, and defaults other than the captured numbers. Of those that the
    operator does not take, each must be what it was in the captured call: its default, or one of the `constants`.

    `structures` are parameters in Python's syntax over the operator's arguments: ``(rotary_0, rotary_1)`` for a tuple,
    ``f32[x.shape[0], _, 64]`` for a tensor that no kernel reads, ``_`` being a dim of any size."""

    def __init__(
        self,
        names: Sequence[str],
        original: Callable[..., Any],
        constants: Mapping[str, Any] | None = None,
        structures: Mapping[str, str] | None = None,
        is_method: bool = False,
    ) -> None:
        self.texts = dict(structures or {})
        self.structures = {name: _pattern(ast.parse(text, mode="eval").body) for name, text in self.texts.items()}
        self.arguments = tuple(names)
        inner = {name for pattern in self.structures.values() for name in _part_names(pattern)}
        names = [*[name for name in names if name not in inner], *self.structures]
        self.names, self.order, self.defaults = tuple(names), tuple(names), {}
        self.others: dict[str, Any] = {}
        try:
            parameters = [*inspect.signature(original).parameters.values()][is_method:]
        except (TypeError, ValueError):  # code without a signature
            return
        known = {_own_name(each.name, names): each for each in parameters}
        if known.keys() >= set(names) or any(each.kind is each.VAR_KEYWORD for each in parameters):
            self.order = tuple([name for name, each in known.items() if each.kind <= each.POSITIONAL_OR_KEYWORD])
            self.defaults = {name: each.default for name, each in known.items() if each.default is not each.empty}
            others = {**self.defaults, **dict(constants or {})}
            self.others = {name: value for name, value in others.items() if name not in names}

    def of(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Return the operator's arguments, or None for a call with others."""
        values = self._by_parameter(inputs, keywords)
        if values is None or not self._has_captured_others(values):
            return None
        found = {name: value for name, value in values.items() if name not in self.structures}
        return None if self._differing(values, found) else tuple([found[name] for name in self.arguments])

    def other(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> str:
        """Explain what differs in a call with other arguments than the captured ones."""
        values = self._by_parameter(inputs, keywords)
        if values is None:
            return _OTHER_CALL.format(names=_names_of(inputs, keywords))
        if name := self._differing(values, dict(values)):
            return f"{name} is not {self.texts[name]}, as in the captured call"
        for name, captured in self.others.items():
            if name in values and not _is_same(values[name], captured):
                return f"{name} is not {captured!r}, as in the captured call"
        return _OTHER_CALL.format(names=_names_of(inputs, keywords))

    def _differing(self, values: Mapping[str, Any], found: dict[str, Any]) -> str:
        """Return the first parameter that is not as its structure; note the tensors in structures in `found`."""
        unread: list[tuple[str, _Unread, Any]] = []
        for name, pattern in self.structures.items():
            parts: list[tuple[_Unread, Any]] = []
            if not _matches(pattern, values[name], found, parts):
                return name
            unread += [(name, part, value) for part, value in parts]
        for name, part, value in unread:
            if not part.holds(value, found):
                return name
        return ""

    def _by_parameter(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any] | None:
        values = {**self.defaults, **dict(zip(self.order, inputs))}
        taken = self.order[: len(inputs)]
        for parameter, value in keywords.items():
            name = _own_name(parameter, self.names)
            if name in taken:
                return None
            values[name] = value
        fits = len(inputs) <= len(self.order) and all(name in values for name in self.names)
        return values if fits else None

    def _has_captured_others(self, values: Mapping[str, Any]) -> bool:
        """Return True where arguments that the operator does not take are those of the captured call."""
        given = [name for name in values if name not in self.names]
        is_known = len(given) == len(self.others) and all(name in self.others for name in given)
        return is_known and all(_is_same(values[name], self.others[name]) for name in given)


def _is_same(value: Any, captured: Any) -> bool:
    """Return True for an argument with the captured value; lists count as tuples."""
    if isinstance(captured, (list, tuple)):
        is_alike = isinstance(value, (list, tuple)) and len(value) == len(captured)
        return is_alike and all(_is_same(*pair) for pair in zip(value, captured))
    if isinstance(captured, dict):
        is_alike = isinstance(value, dict) and value.keys() == captured.keys()
        return is_alike and all(_is_same(value[key], captured[key]) for key in captured)
    return value is captured or (isinstance(captured, _PLAIN) and type(value) is type(captured) and value == captured)


class _Part:
    """A tensor inside of a structure, by the operator's name."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Unread:
    """A tensor that no kernel reads: its dtype and its dims, each a size, None for any, or the argument and dim of
    which it has the size."""

    def __init__(self, dtype: torch.dtype, dims: Sequence[Any]) -> None:
        self.dtype, self.dims = dtype, tuple(dims)

    def holds(self, value: Any, arguments: Mapping[str, Any]) -> bool:
        if not isinstance(value, Tensor) or value.dtype != self.dtype or value.dim() != len(self.dims):
            return False
        for size, dim in zip(value.shape, self.dims):
            if isinstance(dim, tuple):
                other = arguments.get(dim[0])
                if not isinstance(other, Tensor) or other.dim() <= dim[1] or other.shape[dim[1]] != size:
                    return False
            elif dim is not None and size != dim:
                return False
        return True


def _pattern(node: ast.expr) -> Any:
    """Return what `_matches` compares a structure with."""
    if isinstance(node, (ast.Tuple, ast.List)):
        parts = [_pattern(part) for part in node.elts]
        return tuple(parts) if isinstance(node, ast.Tuple) else parts
    if isinstance(node, ast.Subscript):
        dims = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _Unread(DTYPES[ast.unparse(node.value)], [_unread_dim(dim) for dim in dims])
    return _Part(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _unread_dim(node: ast.expr) -> Any:
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value).partition(".")[0], ast.literal_eval(node.slice)
    return None if isinstance(node, ast.Name) else ast.literal_eval(node)


def _part_names(pattern: Any) -> list[str]:
    if isinstance(pattern, (tuple, list)):
        return [name for part in pattern for name in _part_names(part)]
    return [pattern.name] if isinstance(pattern, _Part) else []


def _matches(pattern: Any, value: Any, found: dict[str, Any], unread: list[tuple[_Unread, Any]]) -> bool:
    """Check that a value is arranged as the structure. Note the tensors in it, by name and those without."""
    if isinstance(pattern, _Part):
        found[pattern.name] = value
        return True
    if isinstance(pattern, _Unread):
        unread.append((pattern, value))
        return True
    if isinstance(pattern, (tuple, list)):
        if type(value) not in (tuple, list) or len(pattern) != len(value):
            return False
        return all(_matches(part, each, found, unread) for part, each in zip(pattern, value))
    return _is_same(value, pattern)


def _own_name(parameter: str, names: Sequence[str]) -> str:
    """Return the operator's name of a parameter; an underscore tells it from a name that the operator file has."""
    return f"{parameter}_" if parameter not in names and f"{parameter}_" in names else parameter


def _names_of(inputs: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """Describe a call: ``2 by position, shift``."""
    return ", ".join([f"{len(inputs)} by position", *keywords])
