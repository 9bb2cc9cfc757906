"""Convert sizes between launch plans and index arithmetic: expressions over dims to indices, and back."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_lsp.core.expression import Binary, Call, Constant, Expression, ExpressionError, Name, Unary
from kernel_lsp.core.expression_rules import binary, call
from kernel_lsp.generate.ir.index import (
    ZERO,
    Atom,
    Index,
    Quotient,
    Remainder,
    Symbol,
    as_index,
    expanded,
    is_nonnegative,
)


class Sizes:
    """The sizes of one task. A size that is no product of dims and constants becomes a derived symbol, e.g.
    ``H_minus_2``, so that strides stay products; `expanded` undoes that."""

    def __init__(self, minimums: Mapping[str, int]) -> None:
        self._minimums = minimums
        self._derived: dict[bytes, Symbol] = {}

    def size(self, expression: Expression) -> Index:
        """Return the size that an expression over dims denotes."""
        match expression:
            case Constant(value):
                return as_index(int(value))
            case Name(id):
                return as_index(Symbol(id, self._minimums.get(id, 0)))
            case Binary("*", left, right):
                return self.size(left) * self.size(right)
        exact = self.exact(expression)
        if len(exact.terms) <= 1 and all(isinstance(atom, Symbol) for term in exact.terms for atom in term[0]):
            return exact
        return as_index(self.derived(exact, expression))

    def exact(self, expression: Expression) -> Index:
        """Return the polynomial of an expression, without derived symbols. Raises ExpressionError for an expression
        that is no size."""
        match expression:
            case Constant(value):
                return as_index(int(value))
            case Name(id):
                return as_index(Symbol(id, self._minimums.get(id, 0)))
            case Unary("-", operand):
                return ZERO - self.exact(operand)
            case Binary("+" | "-" | "*" | "//" | "%" as operator, left, right):
                return _ARITHMETIC[operator](self.exact(left), self.exact(right))
            case Call("ceil_div", (left, right)):
                return ZERO - (ZERO - self.exact(left)) // self.exact(right)
            case Call():
                return as_index(self.derived(as_index(Symbol(str(expression))), expression))
        raise ExpressionError(f"'{expression}' is not a size")

    def derived(self, exact: Index, expression: Expression, name: str | None = None) -> Symbol:
        """Return the symbol of a size, one per value."""
        if exact.digest not in self._derived:
            minimum = 0 if is_nonnegative(exact) else -(1 << 62)
            chosen = name or _derived_name(str(expression), len(self._derived))
            self._derived[exact.digest] = Symbol(self._unused(chosen), max(minimum, 0), expression, exact)
        return self._derived[exact.digest]

    def copy(self) -> Sizes:
        """Return an independent copy that may derive more sizes."""
        other = Sizes(self._minimums)
        other._derived = dict(self._derived)
        return other

    def same(self, left: Index, right: Index) -> bool:
        """Return True if two sizes are provably equal."""
        return left == right or expanded(left) == expanded(right)

    def _unused(self, name: str) -> str:
        taken = {symbol.name for symbol in self._derived.values()} | set(self._minimums)
        while name in taken:
            name += "_"
        return name


def to_expression(index: Index) -> Expression:
    """Return the index as an expression of a launch plan. It mentions sizes alone; derived ones are written out."""
    total: Expression = Constant(0)
    for monomial, factor in index.terms:
        term: Expression = Constant(1)
        for atom in monomial:
            term = binary("*", term, _atom_expression(atom))
        total = binary("+", total, binary("*", term, Constant(factor)))
    return total


def ceil_div(left: Expression, right: Expression | int) -> Expression:
    """Return ``ceil_div(left, right)``, folded when both are constants."""
    return call("ceil_div", left, right if isinstance(right, Expression) else Constant(right))


# --- names of derived sizes, and atoms as expressions

_ARITHMETIC = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}
_DERIVED_WORDS = {" // ": "_div_", " + ": "_plus_", " - ": "_minus_", " * ": "", "(": "", ")": "", " ": ""}
MAX_DERIVED_NAME = 24


def _derived_name(text: str, n_derived: int) -> str:
    for symbol, word in _DERIVED_WORDS.items():
        text = text.replace(symbol, word)
    text = f"n_{text}" if text[:1].isdigit() else text
    return text if text.isidentifier() and len(text) <= MAX_DERIVED_NAME else f"size_{n_derived}"


def _atom_expression(atom: Atom) -> Expression:
    match atom:
        case Symbol():
            return Name(atom.name) if atom.definition is None else atom.definition
        case Quotient():
            return binary("//", to_expression(atom.dividend), to_expression(atom.divisor))
        case Remainder():
            return binary("%", to_expression(atom.dividend), to_expression(atom.divisor))
    raise ExpressionError(f"{type(atom).__name__} has no value outside a kernel")
