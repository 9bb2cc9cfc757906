"""Convert the trace's assumptions about symbolic sizes into bounds, or into dims that must be fixed.

A task's symbol has only a minimum and a maximum. The shape environment of `torch.export` holds every relation that the
trace relied on, e.g. ``D % 8 == 0``. Each is evaluated at many sizes within the bounds. One that always holds is
dropped, one that fails at a few small sizes raises the minimum, any other fixes a dim at its captured size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable

import sympy
from torch.utils._sympy.numbers import int_oo

from .symbols import Inexpressible, SymbolTable

SMALL_SIZES = 40
"""Consecutive sizes tried from the minimum up: a relation of a convolution or pooling stack fails there or nowhere."""
LARGE_SIZES = (64, 97, 128, 509, 1000, 1021, 2048, 4093, 16384, 65521, 100003)
"""Further sizes: powers of two, round numbers and primes."""
PAIR_SIZES = 9
"""Consecutive sizes tried per symbol, in addition to the large ones, in a relation among several."""
MAX_COMBINATIONS = 4000
ROOMY_SIZE = 17
N_TELLING = 3


@dataclass(frozen=True)
class Bounds:
    """Inclusive bounds of a size."""

    minimum: int
    maximum: int | None

    def holds(self, size: int) -> bool:
        return self.minimum <= size and (self.maximum is None or size <= self.maximum)


@dataclass(frozen=True)
class Assumptions:
    """The symbols' bounds. `fixed` are the symbols that must become their captured sizes, each with the relation that
    requires it."""

    bounds: dict[sympy.Symbol, Bounds]
    fixed: dict[sympy.Symbol, str]


Agrees = Callable[[dict[sympy.Symbol, int]], bool]
"""Returns whether the captured graph agrees with the user's code at given sizes."""


def ranges(shape_env: Any, captured: dict[sympy.Symbol, int]) -> dict[sympy.Symbol, Bounds]:
    """Return the bounds of every named symbol before any relation."""
    return {symbol: _range(shape_env, symbol) for symbol in captured}


def assumptions(shape_env: Any, symbols: SymbolTable, captured: dict[sympy.Symbol, int], agrees: Agrees) -> Assumptions:
    """Return the bounds of every named symbol, and the symbols that cannot stay symbolic.

    `agrees` is called for sizes at which a relation fails: torch reports relations among strides, and its own choices
    of a formula, as requirements of the code.
    """
    bounds = ranges(shape_env, captured)
    fixed: dict[sympy.Symbol, str] = {}
    for guard in _relations(shape_env):
        involved = sorted((s for s in guard.free_symbols if s in captured), key=str)
        if not involved or any(symbol in fixed for symbol in involved):
            continue
        relation = _Relation(guard, involved, symbols)
        if relation.test is None:
            fixed.update(dict.fromkeys(involved, relation.text))
        else:
            _apply(relation, bounds, captured, fixed, agrees)
    return Assumptions(bounds, fixed)


# --- below: reading the shape environment


def _range(shape_env: Any, symbol: sympy.Symbol) -> Bounds:
    limits = shape_env.var_to_range.get(symbol)
    if limits is None:
        return Bounds(0, None)
    upper = limits.upper
    unbounded = upper is int_oo or upper == sympy.oo or not upper.is_finite or int(upper) > 1 << 48
    return Bounds(int(limits.lower), None if unbounded else int(upper))


def _relations(shape_env: Any) -> list[Any]:
    found = []
    for guard in shape_env.guards:
        expression = shape_env.replace(guard.expr)
        if expression not in (sympy.true, sympy.false) and expression not in found:
            found.append(expression)
    return found


# --- below: trying a relation on sizes


class _Relation:
    """One assumption, as a function of the sizes of `involved`; `test` is None when it cannot be expressed."""

    def __init__(self, guard: Any, involved: list[sympy.Symbol], symbols: SymbolTable) -> None:
        self.involved = involved
        self.test: Callable[..., bool] | None = None
        self.text = str(guard.xreplace({symbol: sympy.Symbol(name) for symbol, name in symbols.names.items()}))
        try:
            text = _boolean_text(guard, symbols)
        except Inexpressible:
            return
        self.text = text[1:-1]  # drop the outer parentheses
        names = ", ".join(symbols.names[symbol] for symbol in involved)
        # The text comes from our own printer of sympy expressions; it contains nothing of the user's.
        self.test = eval(f"lambda {names}: {text}", {"__builtins__": {}, "min": min, "max": max})

    def failures(self, choices: list[list[int]]) -> list[tuple[int, ...]]:
        found = []
        for sizes in itertools.islice(itertools.product(*choices), MAX_COMBINATIONS):
            try:
                holds = self.test is not None and self.test(*sizes)
            except ZeroDivisionError:
                holds = False
            if not holds:
                found.append(sizes)
        return found


def _apply(
    relation: _Relation,
    bounds: dict[sympy.Symbol, Bounds],
    captured: dict[sympy.Symbol, int],
    fixed: dict[sympy.Symbol, str],
    agrees: Agrees,
) -> None:
    """Raise minima, or fix symbols, until the relation holds at every size tried, or proves irrelevant."""
    involved = relation.involved
    choices = [_sizes(bounds[symbol], captured[symbol], len(involved)) for symbol in involved]
    failures = relation.failures(choices)
    if not failures:
        return
    raised = _raised_minima(relation, choices, failures, captured)
    if raised is not None:
        for symbol, minimum in zip(involved, raised):
            bounds[symbol] = Bounds(max(minimum, bounds[symbol].minimum), bounds[symbol].maximum)
        return
    if all(agrees(dict(zip(involved, sizes))) for sizes in _telling(failures)):
        return
    for symbol in _to_fix(relation, choices, captured):
        fixed[symbol] = relation.text


def _sizes(bounds: Bounds, captured: int, n_symbols: int) -> list[int]:
    n_small = SMALL_SIZES if n_symbols == 1 else PAIR_SIZES
    large: Iterable[int] = LARGE_SIZES if n_symbols <= 2 else LARGE_SIZES[1::4]
    sizes = {*range(bounds.minimum, bounds.minimum + n_small), *large, captured}
    return sorted(size for size in sizes if bounds.holds(size))


def _telling(failures: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return a few of the sizes at which a relation fails: the smallest with room for windows and strides."""
    roomy = [sizes for sizes in failures if min(sizes) >= ROOMY_SIZE] or failures
    return sorted(roomy, key=lambda sizes: (sum(sizes), sizes))[:N_TELLING]


def _raised_minima(
    relation: _Relation, choices: list[list[int]], failures: list[tuple[int, ...]], captured: dict[sympy.Symbol, int]
) -> list[int] | None:
    """Return the smallest equal step above every minimum that removes all failures. None when no such step keeps the
    captured sizes."""
    n_small = SMALL_SIZES if len(choices) == 1 else PAIR_SIZES
    starts = [sizes[0] for sizes in choices]
    for step in range(1, n_small):
        minima = [min(start + step, captured[symbol]) for start, symbol in zip(starts, relation.involved)]
        remaining = [f for f in failures if all(size >= minimum for size, minimum in zip(f, minima))]
        if not remaining:
            return minima
    return None


def _to_fix(relation: _Relation, choices: list[list[int]], captured: dict[sympy.Symbol, int]) -> list[sympy.Symbol]:
    """Return the last symbol whose captured size alone makes the relation hold; else all."""
    for position in reversed(range(len(choices))):
        size = captured[relation.involved[position]]
        narrowed = [[size] if other == position else sizes for other, sizes in enumerate(choices)]
        if not relation.failures(narrowed):
            return [relation.involved[position]]
    return list(relation.involved)


def _boolean_text(expression: Any, symbols: SymbolTable) -> str:
    """Print a sympy boolean as Python text. Raises Inexpressible."""
    kind = type(expression).__name__
    if kind in ("And", "Or"):
        word = f" {kind.lower()} "
        return "(" + word.join(_boolean_text(argument, symbols) for argument in expression.args) + ")"
    if kind == "Not":
        return f"(not {_boolean_text(expression.args[0], symbols)})"
    signs = {
        "Equality": "==",
        "Unequality": "!=",
        "StrictLessThan": "<",
        "LessThan": "<=",
        "StrictGreaterThan": ">",
        "GreaterThan": ">=",
    }
    if kind not in signs:
        raise Inexpressible(expression)
    left, right = (symbols.text(argument) for argument in expression.args)
    return f"({left} {signs[kind]} {right})"
