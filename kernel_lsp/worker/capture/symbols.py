"""Convert symbolic sizes, sympy expressions of `torch.export`, into the project's expressions, and the trace's
assumptions about them into bounds or fixed dims.

A task's symbol has only a minimum and a maximum. The shape environment of `torch.export` holds every relation that the
trace relied on, e.g. ``D % 8 == 0``. Each is evaluated at many sizes within the bounds. One that always holds is
dropped, one that fails at a few small sizes raises the minimum, any other fixes a dim at its captured size.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable

import sympy
import torch
from torch.utils._sympy.numbers import int_oo

from ..valid_names import NamePool

NAMES_BY_RANK = {1: "N", 2: "BD", 3: "BTD", 4: "BCHW", 5: "BCDHW"}
"""Names of dims, by rank, where neither pragma nor code names them."""
STATE_NAMES_BY_RANK = {1: "N", 2: "NK", 3: "NCL", 4: "NCRS", 5: "NCDRS"}
"""Names of parameters' dims, by rank, for sizes that no input determines."""


class Inexpressible(Exception):
    """A size that our expression text cannot express, or may not. `symbols` are those that must become fixed."""

    def __init__(self, expression: sympy.Basic, reason: str = "") -> None:
        super().__init__(reason or f"{expression} is no sum, product, quotient, minimum or maximum of sizes")
        self.symbols = frozenset(expression.free_symbols)


class SymbolTable:
    """The names of the symbols of one capture."""

    def __init__(self, names: dict[sympy.Symbol, str], shape_env: Any) -> None:
        self.names = names
        self._shape_env = shape_env

    def text(self, size: Any) -> str:
        """Print a size (int, SymInt, SymFloat or sympy expression) as expression text. Raises Inexpressible."""
        if isinstance(size, (bool, int, float)):
            return str(size)
        expression = size.node.expr if hasattr(size, "node") else size
        if self._shape_env is not None:
            expression = self._shape_env.replace(expression)
        return _Printer(self.names).print_top(expression)

    def shape(self, shape: Sequence[Any]) -> list[str]:
        return [self.text(size) for size in shape]


def symbol_of(size: Any) -> sympy.Symbol | None:
    """Return the symbol of a SymInt that is a single symbol; None for a number or a compound."""
    expression = expression_of(size)
    return expression if isinstance(expression, sympy.Symbol) else None


def expression_of(size: Any) -> sympy.Expr | None:
    """Return the expression of a SymInt; None for a number."""
    return getattr(getattr(size, "node", None), "expr", None)


def is_settled(size: torch.SymInt) -> bool:
    """Check whether tracing fixed a symbolic size, e.g. because a weight has it."""
    return bool(size.node.expr.is_number)


def names_in_code(function: Callable[..., Any]) -> dict[tuple[str, int], str]:
    """Return the names that the code gives to the dims of its parameters: ``B, T, D = x.shape`` gives ``{("x", 0): "B",
    ...}``.

    Recognises tuples from ``x.shape`` and ``x.size()`` and single dims from ``x.shape[0]`` and ``x.size(0)``.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return {}
    found: dict[tuple[str, int], str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for key, name in _dims_named(node.targets[0], node.value):
                found.setdefault(key, name)
    return found


def name_symbols(
    shapes: Sequence[tuple[str, Sequence[Any]]],
    preferred: dict[tuple[str, int], str],
    pool: NamePool,
    state: frozenset[str],
) -> dict[sympy.Symbol, str]:
    """Return a name for every symbol of the tensors' shapes, in their order. `preferred`, by tensor and dim, wins.
    `state` are the tensors that no user passes."""
    names: dict[sympy.Symbol, str] = {}
    for chosen in (True, False):
        for tensor, shape in shapes:
            by_rank = (STATE_NAMES_BY_RANK if tensor in state else NAMES_BY_RANK).get(len(shape), "")
            for dim, size in enumerate(shape):
                symbol = symbol_of(size)
                if symbol is None or symbol in names:
                    continue
                wanted = preferred.get((tensor, dim))
                if chosen and wanted is not None:
                    names[symbol] = pool.take(wanted)
                elif not chosen:
                    names[symbol] = pool.take(by_rank[dim] if by_rank else f"D{dim}")
    return names


def _dims_named(target: ast.expr, value: ast.expr) -> list[tuple[tuple[str, int], str]]:
    tensor, dim = _dim_access(value)
    if tensor is None:
        return []
    if dim is not None:
        return [((tensor, dim), target.id)] if isinstance(target, ast.Name) else []
    if not isinstance(target, ast.Tuple):
        return []
    starred = any(isinstance(element, ast.Starred) for element in target.elts)
    elements = [] if starred else target.elts
    return [
        ((tensor, position), element.id)
        for position, element in enumerate(elements)
        if isinstance(element, ast.Name) and element.id.strip("_")
    ]


def _dim_access(value: ast.expr) -> tuple[str | None, int | None]:
    """Return the tensor and dim: ``x.shape`` gives (x, None); ``x.shape[1]`` and ``x.size(1)`` give (x, 1)."""
    dim = None
    if isinstance(value, ast.Subscript):
        dim, value = _index(value.slice), value.value
        if dim is None:
            return None, None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "size":
        if value.args:
            dim = _index(value.args[0])
            if dim is None:
                return None, None
        value = ast.Attribute(value.func.value, "shape", ast.Load())
    if isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name):
        return value.value.id, dim
    return None, None


def _index(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0:
        return node.value
    return None


class _Printer:
    def __init__(self, names: dict[sympy.Symbol, str]) -> None:
        self._names = names

    def print_top(self, expression: sympy.Basic) -> str:
        try:
            return self._print(expression, 0)
        except _Unknown:
            raise Inexpressible(expression) from None

    def _print(self, expression: sympy.Basic, level: int) -> str:
        text, own = self._print_open(expression)
        return f"({text})" if own < level else text

    def _print_open(self, expression: sympy.Basic) -> tuple[str, int]:
        if isinstance(expression, sympy.Symbol):
            if expression not in self._names:
                raise _Unknown
            return self._names[expression], 2
        if expression.is_Integer:
            return str(int(expression)), 2 if int(expression) >= 0 else 0
        if isinstance(expression, sympy.Float):
            return repr(float(expression)), 2 if float(expression) >= 0 else 0
        kind = type(expression).__name__
        if kind in ("FloorDiv", "CleanDiv", "IntTrueDiv", "FloatTrueDiv", "Mod", "PythonMod"):
            operator = {"FloorDiv": "//", "CleanDiv": "//", "Mod": "%", "PythonMod": "%"}.get(kind, "/")
            left, right = expression.args
            return f"{self._print(left, 1)} {operator} {self._print(right, 2)}", 1
        if kind in ("Max", "Min"):
            inner = ", ".join(self._print(argument, 0) for argument in expression.args)
            return f"{kind.lower()}({inner})", 2
        if kind == "ToFloat":
            return self._print_open(expression.args[0])
        if expression.is_Add:
            return self._sum(expression), 0
        if expression.is_Mul:
            return self._product(expression), 1
        if expression.is_Pow and expression.args[1].is_Integer and int(expression.args[1]) > 0:
            return " * ".join([self._print(expression.args[0], 2)] * int(expression.args[1])), 1
        raise _Unknown

    def _sum(self, expression: sympy.Basic) -> str:
        text = ""
        for term in sorted(expression.args, key=lambda term: (term.could_extract_minus_sign(), *self._order(term))):
            negative = term.could_extract_minus_sign()
            printed = self._print(-term if negative else term, 1)
            if not text:
                text = f"-{self._print(-term, 2)}" if negative else printed
            else:
                text += f" - {printed}" if negative else f" + {printed}"
        return text

    def _product(self, expression: sympy.Basic) -> str:
        factors = sorted(expression.args, key=lambda factor: (not factor.is_number, *self._order(factor)))
        if any(factor.is_Rational and not factor.is_Integer for factor in factors):
            raise _Unknown
        # A floor division among factors needs parentheses of its own: (a // 2) * b is not a // (2 * b).
        return " * ".join(self._print(factor, 2) for factor in factors)

    def _order(self, part: sympy.Basic) -> tuple[bool, int, str]:
        """Return the sort key: numbers last, others in the order in which the symbols are declared."""
        order = list(self._names)
        positions = [order.index(symbol) for symbol in part.free_symbols if symbol in self._names]
        return bool(part.is_number), min(positions, default=0), str(part)


class _Unknown(Exception):
    pass


def shape_env_of(tensors: Sequence[Any]) -> Any:
    """Return the shape environment behind fake tensors; None when no size is symbolic."""
    for tensor in tensors:
        mode = getattr(tensor, "fake_mode", None)
        if isinstance(tensor, torch.Tensor) and mode is not None and mode.shape_env is not None:
            return mode.shape_env
    return None


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
