"""Convert symbolic sizes, sympy expressions of `torch.export`, into the project's expression text with readable
names."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any, Callable

import sympy
import torch

from ..names import NamePool

NAMES_BY_RANK = {1: "N", 2: "BD", 3: "BTD", 4: "BCHW", 5: "BCDHW"}
"""Names of dims, by rank, where neither pragma nor code names them."""
STATE_NAMES_BY_RANK = {1: "N", 2: "NK", 3: "NCL", 4: "NCRS", 5: "NCDRS"}
"""Names of parameters' dims, by rank, for sizes that no input determines."""


class Inexpressible(Exception):
    """A size that our expression text cannot express. `symbols` are those that must become fixed."""

    def __init__(self, expression: sympy.Basic) -> None:
        super().__init__(f"{expression} is no sum, product, quotient, minimum or maximum of sizes")
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
    expression = getattr(getattr(size, "node", None), "expr", None)
    return expression if isinstance(expression, sympy.Symbol) else None


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
    state: frozenset[str] = frozenset(),
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


# --- below: dims that the code names


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


# --- below: printing. Levels: 0 sum, 1 term, 2 atom


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
