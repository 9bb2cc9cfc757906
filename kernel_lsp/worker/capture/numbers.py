"""Find the numbers of the caller in a captured graph: arguments of the call, and float attributes of its module.

`torch.export` makes constants of them. A second capture with other numbers shows which constants they are; it computes
with subclasses of float that record how each number was computed, and whether the code's course depends on it.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import torch

from ..valid_names import NamePool
from .attempt import Attempt, MustFix, StillRandom
from .attribute_reads import named_parts
from .captured import Captured, ModuleNumber
from .graph import GraphText
from .inputs import ScalarLeaf
from .modes import MODULE_KINDS, method_of, module_settings

Key = Union[int, str]
"""Position or keyword of an argument."""
Number = Union[float, int]
UNREAD = ("momentum", "dropout")
MARK_SHARE = 1e-2
"""Relative change of a float in the second capture: small, so that limits of the code still hold."""
MARK_OF_ZERO = 1e-3
MAX_CAPTURES = 3
"""Maximum captures with other numbers; each leaves out those that the one before could not follow."""
DECIDING = (
    "lt le gt ge eq ne bool int trunc round floor ceil mod rmod floordiv rfloordiv divmod rdivmod pow rpow".split()
)
"""Methods of float whose results have no text: what uses them keeps the captured value."""
MARK_DISTANCE = 3
"""Change of an integer in the second capture."""
NUMBER_TYPES = ("number", "Scalar", "float", "Tensor")
"""Types in an operator's schema that take any number, as opposed to a dim or a size. ATen's graphs have numbers in
place of tensors."""


def find_numbers(captured: Captured, again: Attempt, *, has_settings: bool) -> None:
    """Note in a capture's graphs which constants are numbers of the caller, and list those of its module. A capture
    that does not allow this stays as it is. Without `has_settings` no setting of the module is an argument: a deep one
    is not captured a second time for that, which took 9 of a ResNet18's 20 s on a busy machine and found none."""
    if captured.source["kind"] not in (*MODULE_KINDS, "function"):
        return
    if captured.source.get("attributes") is not None:  # the numbers of the task that this capture is compared with
        captured.module_numbers += [ModuleNumber(**given) for given in captured.source["attributes"]]
        return
    candidates = _candidates(captured, has_settings)
    for _ in range(MAX_CAPTURES):
        watch = _Watch()
        if not candidates or _note(captured, again, candidates, watch):
            return
        is_undecided = watch.deciding.isdisjoint(candidate.name for candidate in candidates)
        candidates = [
            c for c in candidates if c.name not in watch.deciding and not (is_undecided and type(c.value) is int)
        ]


@dataclass(frozen=True)
class _Candidate:
    """A number that may be an argument: `path` is its attribute, empty for an argument of the call."""

    name: str
    path: str
    value: Number


def _candidates(captured: Captured, has_settings: bool) -> list[_Candidate]:
    leaves = [leaf for leaf in captured.inputs.leaves if isinstance(leaf, ScalarLeaf)]
    own = [_Candidate(x.name, "", x.value) for x in leaves if type(x.value) in (int, float) and math.isfinite(x.value)]
    pool = NamePool()
    taken = {leaf.name for leaf in captured.inputs.leaves} | {argument.name for argument in captured.arguments}
    for name in sorted(taken | {*captured.symbols.names.values(), *captured.output_names}):
        pool.take(name)
    module = captured.callee.module
    method = method_of(captured.source)
    settings = (
        module_settings(module, method, is_eval=True, watch=captured.attributes)
        if has_settings and module is not None
        else {}
    )
    of_modules = {f"{path}.{name}".lstrip(".") for path, part in named_parts(module) for name in vars(part)}
    numbers = {path: value for path, value in settings.items() if type(value) is float and path in of_modules}
    return own + [_Candidate(pool.take(path), path, value) for path, value in numbers.items()]


@dataclass
class _Watch:
    """The record of one second capture: the text of each computed number, and the names of those that the code
    compared, rounded or raised to a power."""

    texts: dict[float, str] = field(default_factory=dict)
    deciding: set[str] = field(default_factory=set)


class _Watched(float):
    """A float that records its text, what is computed from it, and that the code compares it."""

    text: str
    names: frozenset[str]
    watch: _Watch

    def __neg__(self) -> Any:
        return _watched(self.watch, -float(self), f"-{self.text}", self.names)

    def __reduce__(self) -> Any:
        return float, (float(self),)


def _watched(watch: _Watch, value: float, text: str, names: frozenset[str]) -> _Watched:
    made = _Watched(value)
    made.watch, made.text, made.names = watch, text, names
    watch.texts.setdefault(float(value), text)
    return made


def _arithmetic(symbol: str, method: str, *, is_reversed: bool = False) -> Callable[..., Any]:
    compute = getattr(float, method)

    def computed(self: _Watched, other: Any) -> Any:
        if type(other) not in (int, float, _Watched):
            return NotImplemented
        value = compute(self, other)
        left, right = self.text, getattr(other, "text", repr(other))
        left, right = (right, left) if is_reversed else (left, right)
        return _watched(self.watch, value, f"({left} {symbol} {right})", self.names | getattr(other, "names", set()))

    return computed


def _deciding(method: str) -> Callable[..., Any]:
    own = getattr(float, method)

    def decided(self: _Watched, *others: Any) -> Any:
        self.watch.deciding |= self.names
        return own(self, *others)

    return decided


for _symbol, _name in {"+": "add", "-": "sub", "*": "mul", "/": "truediv"}.items():
    setattr(_Watched, f"__{_name}__", _arithmetic(_symbol, f"__{_name}__"))
    setattr(_Watched, f"__r{_name}__", _arithmetic(_symbol, f"__r{_name}__", is_reversed=True))
for _name in DECIDING:
    setattr(_Watched, f"__{_name}__", _deciding(f"__{_name}__"))
_Watched.__hash__ = float.__hash__  # type: ignore[method-assign]  # `__eq__` unset it


def _marked(watch: _Watch, candidate: _Candidate, position: int) -> Number:
    """Return another value, different for each candidate."""
    value = candidate.value
    if isinstance(value, int):
        watch.texts[value + MARK_DISTANCE + position] = candidate.name
        return value + MARK_DISTANCE + position
    share = 1.0 + position / 7.0
    other = value * (1.0 - MARK_SHARE * share / (1.0 + position)) if value else MARK_OF_ZERO * share
    return _watched(watch, other, candidate.name, frozenset((candidate.name,)))


@contextlib.contextmanager
def _set(captured: Captured, values: dict[str, Number], candidates: Sequence[_Candidate]) -> Iterator[None]:
    """Give the call and its module other numbers temporarily."""
    given, changed = captured.inputs.numbers, []
    for candidate in candidates:
        if candidate.path:
            module, name = attribute_place(captured.callee.module, candidate.path)
            changed.append((module, name, vars(module)[name]))
            vars(module)[name] = values[candidate.name]
        else:
            given[candidate.name] = values[candidate.name]
    try:
        yield
    finally:
        given.clear()
        for module, name, value in changed:
            vars(module)[name] = value


def attribute_place(owner: Any, path: str) -> tuple[Any, str]:
    """Return the module that holds an attribute, and the attribute's own name."""
    parent, _, name = path.rpartition(".")
    return (owner.get_submodule(parent) if parent else owner), name


def _note(captured: Captured, again: Attempt, candidates: Sequence[_Candidate], watch: _Watch) -> bool:
    """Capture again with other numbers, and note where they are in the graphs; False where that is not clear."""
    values = {candidate.name: _marked(watch, candidate, position) for position, candidate in enumerate(candidates)}
    with _set(captured, values, candidates):
        try:
            other = again.run(with_backward=captured.backward is not None)
        except (MustFix, StillRandom):
            return False
        except Exception:  # the user's code may refuse the other numbers with any exception
            return False
    used = frozenset(candidate.name for candidate in candidates) - watch.deciding
    comparison = _Comparison(watch, {candidate.name: candidate.value for candidate in candidates})
    found = [
        comparison.nodes(first, second)
        for first, second in (
            (captured.forward_text, other.forward_text),
            (captured.backward_text, other.backward_text),
        )
    ]
    printed = comparison.functional(captured.program.functional.graph, other.program.functional.graph)
    if printed is None or None in found or not _have_equal_constants(captured, other):
        return False
    _keep(captured, [entry for noted in found for entry in noted or ()], printed, used - comparison.unread, candidates)
    return True


def _keep(
    captured: Captured,
    noted: Sequence[tuple[dict[str, Any], str, str]],
    printed: dict[tuple[str, Key], str],
    free: frozenset[str],
    candidates: Sequence[_Candidate],
) -> None:
    """Note the numbers in `free`, those that decide no branch, in the capture."""
    kept = [entry for entry in noted if _words(entry[2]) <= free]
    for node, key, text in kept:
        node["scalars"][key] = text
    captured.number_texts.update({place: text for place, text in printed.items() if _words(text) <= free})
    used = {name for _, _, text in kept for name in _words(text)}
    captured.module_numbers += [ModuleNumber(c.name, c.path, c.value) for c in candidates if c.path and c.name in used]
    captured.free_settings |= {c.path for c in candidates if c.path and c.name in free}


@dataclass(frozen=True)
class _Comparison:
    """Compares graphs of two captures whose numbers differ. `before` has the first capture's, by name."""

    watch: _Watch
    before: dict[str, Number]
    unread: set[str] = field(default_factory=set)

    def nodes(self, first: GraphText | None, second: GraphText | None) -> list[tuple[dict[str, Any], str, str]] | None:
        """Return the nodes, keys and texts of the differing numbers; None where anything else differs."""
        if first is None or second is None:
            return [] if first is second else None
        if len(first.nodes) != len(second.nodes) or first.outputs != second.outputs:
            return None
        noted = []
        for one, two in zip(first.nodes, second.nodes):
            rest = [{**node, "arguments": (), "keywords": ()} for node in (one, two)]
            pairs = _paired(one["arguments"], two["arguments"], one["keywords"], two["keywords"])
            if rest[0] != rest[1] or pairs is None:
                return None
            for key, a, b in pairs:
                if a != b:
                    text = self._text(a, b) if _takes_number(_operator_of(one["op"]), key) else None
                    if text is None:
                        return None
                    if _is_unread(_operator_of(one["op"]), key):
                        self.unread.update(_words(text))
                    noted.append((one, str(key), text))
        return noted

    def functional(self, first: Any, second: Any) -> dict[tuple[str, Key], str] | None:
        """Return the texts of the differing numbers of the graph that the reference is printed from."""
        ones, twos = list(first.nodes), list(second.nodes)
        if [(n.name, n.op) for n in ones] != [(n.name, n.op) for n in twos]:
            return None
        noted: dict[tuple[str, Key], str] = {}
        for one, two in zip(ones, twos):
            pairs = _paired(one.args, two.args, one.kwargs, two.kwargs)
            if str(one.target) != str(two.target) or pairs is None:
                return None
            for key, a, b in pairs:
                if str(a) != str(b):
                    text = self._text(a, b) if _takes_number(one.target, key) else None
                    if text is None:
                        return None
                    noted[one.name, key] = text
        return noted

    def _text(self, first: Any, second: Any) -> str | None:
        """Return the number's text in names, as the second capture computed it; None where that is not known."""
        if type(first) not in (int, float) or not isinstance(second, (int, float)) or isinstance(second, bool):
            return None
        rounded = {_in_f32(value): text for value, text in self.watch.texts.items()}
        text = self.watch.texts.get(float(second), rounded.get(float(second)))
        if text is None:
            return None
        try:
            value = eval(text, {"__builtins__": {}}, dict(self.before))
        except (ArithmeticError, NameError):  # a division by zero; an infinity, which has no literal
            return None
        return text if first in (value, _in_f32(value)) else None


def _paired(
    first: Sequence[Any], second: Sequence[Any], first_by_name: dict[str, Any], second_by_name: dict[str, Any]
) -> list[tuple[Key, Any, Any]] | None:
    """Return the arguments of two calls side by side, by position or name; None where their numbers differ."""
    if len(first) != len(second) or first_by_name.keys() != second_by_name.keys():
        return None
    by_name = [(name, value, second_by_name[name]) for name, value in first_by_name.items()]
    return [*((position, a, b) for position, (a, b) in enumerate(zip(first, second))), *by_name]


def _have_equal_constants(first: Captured, second: Captured) -> bool:
    """Check tensors that the code builds from numbers."""
    ones = [p.value for p in first.program.placeholders if p.role == "constant" and p.node not in first.constants]
    twos = [p.value for p in second.program.placeholders if p.role == "constant" and p.node not in second.constants]
    return len(ones) == len(twos) and all(map(torch.equal, ones, twos))


def _is_unread(operator: Any, key: Key) -> bool:
    """Check for a number that inference does not read: it stays a setting of the module."""
    arguments = getattr(getattr(operator, "_schema", None), "arguments", ())
    return any(key in (position, a.name) and a.name in UNREAD for position, a in enumerate(arguments))


def _takes_number(operator: Any, key: Key) -> bool:
    arguments = getattr(getattr(operator, "_schema", None), "arguments", ())
    for position, argument in enumerate(arguments):
        if key in (position, argument.name):
            return str(argument.type).removeprefix("Optional[").rstrip("]") in NUMBER_TYPES
    return False


def _operator_of(name: str) -> Any:
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _in_f32(value: float) -> float:
    with contextlib.suppress(OverflowError):
        return float(struct.unpack("f", struct.pack("f", value))[0])
    return value


def _words(text: str) -> set[str]:
    """Return the names in a text: it has names, numbers and operators."""
    return {word for word in text.replace("(", " ").replace(")", " ").replace("-", " ").split() if word.isidentifier()}
