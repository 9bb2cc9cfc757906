"""Compile the launch plan in an operator file: to the contract of an operation, and to the function that launches it.

The part below the imports is carried by the shared runtime of operator files, word for word.
"""

from __future__ import annotations

import functools
import linecache
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .cuda_runtime import _C_TYPES, _HALF_TYPES
from .operator_support import DTYPES, Contract, ceil_div, holds, require, sizes
from .sdpa import sdpa_backward, sdpa_backward_kept, sdpa_forward, sdpa_forward_kept

# --- Launch plans ---------------------------------------------------------------------------------------

MAY_DIVIDE_BY_ZERO = re.compile(r"ceil_div|[/%] *[^/ \d]")
TYPED_NUMBER = re.compile(r"([a-z_][\w ]*)\((.*)\)")
LIBRARY_STEP = re.compile(r"(\w+)::(\w+)\((.*)\) -> \((.*)\)")


class Plan:
    """One operation as the launch plan of the `.cu` file states it. Expressions are Python's, names without a type in
    `op:` have that of the `forward`, whose arguments ``...`` stands for, a list in `scratch:` has one type, and what a
    launch is given beside tensors and ``float(eps)`` is an `int`."""

    def __init__(self, text: str, forward: Plan | None = None) -> None:
        self.forward = forward
        self.order: list[str] = []
        self.inputs: dict[str, str] = {}
        self.numbers: dict[str, str] = {}
        self.where: list[str] = []
        self.steps: list[tuple[str, str, str]] = []
        self.kept: dict[str, str] = {}
        self.scratch: dict[str, str] = {}
        for line in re.sub(r"\n\s+", " ", text.strip()).splitlines():
            directive, _, body = line.partition(": ")
            self._add(directive, body)

    def _add(self, directive: str, body: str) -> None:
        if directive == "op":
            self._declare(body)
        elif directive == "where":
            self.where.append(body)
        elif directive in ("keeps", "scratch"):
            (self.kept if directive == "keeps" else self.scratch).update(_typed_alike(_entries(body)))
        else:
            step, _, condition = directive.partition("[")
            self.steps.append((step, condition[:-1], body))

    def _declare(self, body: str) -> None:
        takes, _, returns = body.rpartition(" -> ")
        self.name, _, takes = takes.partition("(")
        known = self.forward.types() if self.forward is not None else {}
        own = [each for each in _entries(takes[:-1]) if each != "..."]
        arguments = dict(_typed(each, known) for each in own)
        self.before = [*arguments]  # of a backward: what it takes before the forward's arguments
        if takes.endswith("...)"):
            assert self.forward is not None
            arguments.update({**self.forward.inputs, **self.forward.numbers})
            self.order = [*self.before, *self.forward.order]
        else:
            self.order = self.before
        self.inputs = {name: type_ for name, type_ in arguments.items() if type_.endswith("]")}
        self.numbers = {name: type_ for name, type_ in arguments.items() if not type_.endswith("]")}
        entries = [each.split(" = ") for each in _entries(returns[1:-1])]
        self.same = {each[0]: each[1] for each in entries if len(each) == 2}
        self.results = dict(_typed(each[0], known) for each in entries if len(each) == 1)

    def types(self) -> dict[str, str]:
        """Return the types of what a backward takes and returns, by name."""
        types = {**self.inputs, **self.results}
        renamed = {f"grad_{name.removesuffix('_')}": type_ for name, type_ in types.items()}  # as in `argument_of`
        gradients = {f"grad_{name}": type_ for name, type_ in types.items()}
        return {**self.inputs, **renamed, **gradients, **self.results, **self.kept}

    def argument_of(self, gradient: str) -> str:
        """Return the argument that a gradient belongs to; an underscore tells it from a name that the file has."""
        name = gradient[len("grad_") :]
        return name if name in self.order else f"{name}_"

    def given(self) -> list[int]:
        """Return what a backward is given of all that its forward returns, by place."""
        assert self.forward is not None
        returned = [*self.forward.results, *self.forward.kept]
        return [returned.index(name) for name in self.before if name in returned]

    def same_gradients(self) -> dict[str, str | int]:
        """Return the arguments whose gradient is another argument's, by name, or a result's, by its number."""
        held = {name: place for place, name in enumerate(self.before)}
        return {self.argument_of(name): held.get(of, self.argument_of(of)) for name, of in self.same.items()}

    @property
    def kernels(self) -> list[str]:
        """List the kernels that no shape chooses."""
        names = dict.fromkeys(body.partition("<<<")[0] for step, _, body in self.steps if step == "launch")
        return [name for name in names if "{" not in name]

    def schema(self) -> str:
        """Return the schema behind the name: ``(Tensor x, float eps) -> Tensor``."""
        types = {"int": "SymInt", "float": "float", "bool": "bool"}
        takes = ", ".join(f"{types.get(self.numbers.get(name, ''), 'Tensor')} {name}" for name in self.order)
        returned = ["Tensor"] * (len(self.results) + len(self.kept))
        return f"({takes}) -> {returned[0] if len(returned) == 1 else '(' + ', '.join(returned) + ')'}"

    # as Python

    def functions(self, file: str) -> tuple[Callable[..., Contract], Callable[..., Any]]:
        """Return the contract, and the steps, whose first argument is the `Run` that launches."""
        arguments = ", ".join(self.order)
        contract = [f"def contract({arguments}):", *_indented(self._contract())]
        steps = [f"def steps(run, {arguments}):", *_indented(self._steps())]
        source, place = "\n".join([*contract, *steps, ""]), f"{file}::{self.name}"
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
        attention = (sdpa_forward, sdpa_backward, sdpa_forward_kept, sdpa_backward_kept)
        known = {each.__name__: each for each in (sizes, holds, ceil_div, Contract, *attention)}
        names: dict[str, Any] = {"torch": torch, "math": math, **known}
        exec(compile(source, place, "exec"), names)  # text of this file's own plan
        return names["contract"], names["steps"]

    def _contract(self) -> list[str]:
        where = [*(self.forward.where if self.forward is not None and self.order != self.before else ()), *self.where]
        inputs = [f"{_label(item)}: ({item[0]}, {_shape(item[1])})" for item in self.inputs.items()]
        conditions = [f"{each!r}: {self._condition(each)}" for each in where]
        numbers = [f"{_label(item)}: {item[0]}" for item in self.numbers.items()]
        parts = [inputs, _shapes(self.results), conditions, numbers, _shapes(self.kept)]
        made = ", ".join("{" + ", ".join(part) + "}" for part in parts)
        return [*self._dims("sizes({name}, {rank})"), f"return Contract({made})"]

    def _condition(self, text: str) -> str:
        may_fail = MAY_DIVIDE_BY_ZERO.search(text) or not self.numbers.keys().isdisjoint(re.findall(r"\w+", text))
        return f"holds(lambda: {text})" if may_fail else text

    def _dims(self, shape: str) -> list[str]:
        """Assign each dim, from the first tensor and place at which it stands alone."""
        lines, known = [], {*self.numbers}
        for name, type_ in self.inputs.items():
            dims = _dims_of(type_)
            own = ["_" if not d.isidentifier() or d in known or d in dims[:i] else d for i, d in enumerate(dims)]
            known.update(own)
            if any(dim != "_" for dim in own):
                lines.append(f"{', '.join(own)}, = {shape.format(name=name, rank=len(own))}")
        return lines

    def _steps(self) -> list[str]:
        returned = {**self.results, **self.kept}
        tensors = {**self.inputs, **returned, **self.scratch}
        device, made = f"{next(iter(self.inputs))}.device", self._made()
        lines = self._dims("{name}.shape")
        for name, type_ in {**returned, **self.scratch}.items():
            if name not in made:
                dtype = DTYPES[type_.partition("[")[0]]
                lines.append(f"{name} = torch.empty({_shape(type_)}, dtype={dtype}, device={device})")
        for step, condition, body in self.steps:
            own = _STEPS[step](body, tensors)
            lines += [f"if {condition}:", *_indented(own)] if condition else own
        lines.append(f"return {', '.join(returned)}")
        has_library = any(step == "library" for step, _, _ in self.steps)
        return ['with torch.autocast("cuda", enabled=False):', *_indented(lines)] if has_library else lines

    def _made(self) -> set[str]:
        """Return the tensors that a library step allocates, before any other step has them."""
        made: set[str] = set()
        seen: set[str] = set()
        for step, condition, body in self.steps:
            if step == "library" and not condition:
                made |= set(_entries(body.rpartition(" -> ")[2][1:-1])) - seen
            seen |= set(re.findall(r"\w+", body))
        return made


def captured_with(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for code that holds for the captured sizes alone: those that are numbers in the plan's `op:`
    line. Other sizes raise ValueError."""
    plan = Plan(text)
    places = [(plan.order.index(name), f"{name}: {type_}") for name, type_ in plan.inputs.items()]
    types = "; ".join(label for _, label in places)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def checked(*arguments: Any) -> Any:
            require(plan.name, types, *[arguments[place] for place, _ in places])
            return function(*arguments)

        return checked

    return decorate


def _entries(text: str) -> list[str]:
    """Split a list at the commas that are outside of brackets."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    return [each for each in (*found, text[start:].strip()) if each]


def _typed(entry: str, known: Mapping[str, str]) -> tuple[str, str]:
    name, _, type_ = entry.partition(": ")
    return name, type_ or known[name]


def _typed_alike(entries: Sequence[str]) -> dict[str, str]:
    """Return the types of ``a, b: f32[B]``: a name without a type has that of the next."""
    found, type_ = {}, ""
    for name, _, own in (entry.partition(": ") for entry in reversed(entries)):
        found[name] = type_ = own or type_
    return dict(reversed(found.items()))


def _dims_of(type_: str) -> list[str]:
    return _entries(type_.partition("[")[2][:-1])


def _shape(type_: str) -> str:
    return "(" + "".join(f"{dim}, " for dim in _dims_of(type_)) + ")"


def _shapes(types: Mapping[str, str]) -> list[str]:
    return [f"{_label(item)}: {_shape(item[1])}" for item in types.items()]


def _label(item: tuple[str, str]) -> str:
    return repr(": ".join(item))


def _fill(body: str, tensors: Mapping[str, str]) -> list[str]:
    tensor, value = body.split(" = ")
    return [f"{tensor}.fill_({value})"]


def _launch(body: str, tensors: Mapping[str, str]) -> list[str]:
    kernel, _, rest = body.partition("<<<")
    size, _, rest = rest.partition(">>>(")
    listed, _, attributes = rest.rpartition(")")
    grid, block, *shared = _entries(size.replace("dim3(", "("))
    given, types = [], []
    for argument in _entries(listed):
        typed = TYPED_NUMBER.fullmatch(argument)
        if typed is not None and typed[1] not in _C_TYPES and typed[1] not in _HALF_TYPES:
            typed = None  # a call of the expression's own, as in ceil_div(B, 4)
        given.append(typed[2] if typed else argument)
        types += [] if argument in tensors else [typed[1] if typed else "int"]
    name = "f" * ("{" in kernel) + repr(re.sub(r"{(.*?)}", r"{str(\1).lower()}", kernel))  # C++ writes `true`
    extra = [f"shared={each}" for each in shared] + attributes.split()
    parts = [name, grid, block, "(" + "".join(f"{each}, " for each in given) + ")", repr(", ".join(types)), *extra]
    return [f"run.launch({', '.join(parts)})"]


def _library(body: str, tensors: Mapping[str, str]) -> list[str]:
    match = LIBRARY_STEP.fullmatch(body)
    assert match, body
    function = f"torch.ops.aten.{match[2]}" if match[1] == "aten" else f"{match[1]}_{match[2]}"
    results = _entries(match[4])
    if len(results) == 1 and not match[2].endswith("_backward"):
        return [f"{results[0]} = {function}({match[3]}).contiguous()"]
    values = "(value.contiguous() for value in returned if value is not None)"
    return [f"returned = {function}({match[3]})", f"{', '.join(results)}, = {values}"]


_STEPS: dict[str, Callable[[str, Mapping[str, str]], list[str]]] = {
    "fill": _fill,
    "launch": _launch,
    "library": _library,
}


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
