"""Convert sizes between launch plans and index arithmetic, and positions between one index per dim and one flat index;
questions about an index's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from kernel_lsp.core.expression import (
    Binary,
    Call,
    Constant,
    Expression,
    ExpressionError,
    Name,
    Unary,
)
from kernel_lsp.core.expression_rules import binary, call, substitute
from kernel_lsp.generate.ir.atoms import Atom, Monomial, Quotient, Remainder, Symbol, Variable
from kernel_lsp.generate.ir.index import CACHED_RESULTS, ZERO, Index, as_index, expanded, is_nonnegative, product

NOTHING_FIXED: Mapping[str, int] = {}


class Sizes:
    """The sizes of one task. A size that is no product of dims and constants becomes a derived symbol, e.g.
    ``H_minus_2``, so that strides stay products; `expanded` undoes that. Dims in `fixed` are constants."""

    def __init__(self, minimums: Mapping[str, int], fixed: Mapping[str, int] = NOTHING_FIXED) -> None:
        self._minimums = minimums
        self._fixed = {name: Constant(value) for name, value in fixed.items()}
        self._derived: dict[bytes, Symbol] = {}

    def size(self, expression: Expression) -> Index:
        """Return the size that an expression over dims denotes."""
        expression = substitute(expression, self._fixed) if self._fixed else expression
        if isinstance(expression, Binary) and expression.operator == "*":
            return self.size(expression.left) * self.size(expression.right)
        exact = self.exact(expression)
        if len(exact.terms) <= 1 and all(isinstance(atom, Symbol) for term in exact.terms for atom in term[0]):
            return exact
        return as_index(self.derived(exact, expression))

    def exact(self, expression: Expression) -> Index:
        """Return the polynomial of an expression, without derived symbols. Raises ExpressionError for no size."""
        match expression:
            case Constant(value):
                return as_index(int(value))
            case Name(id) if id in self._fixed:
                return as_index(int(self._fixed[id].value))
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
        other._fixed = self._fixed
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


def ravel(index: Sequence[Index], shape: Sequence[Index]) -> Index:
    """Return the flat position in a row-major array of `shape`."""
    if any(position.reads_memory for position in index):
        return _raveled(index, shape)
    return _raveled_once(tuple(index), tuple(shape))


def _raveled(index: Sequence[Index], shape: Sequence[Index]) -> Index:
    flat = ZERO
    for position, size in zip(index, shape, strict=True):
        flat = flat * size + position
    return flat


_raveled_once = lru_cache(maxsize=CACHED_RESULTS)(_raveled)
"""Not for values read from memory: tensors of another program may have the same names and numbers."""


def unravel(flat: Index, shape: Sequence[Index]) -> tuple[Index, ...]:
    """Return the index of a flat position in a row-major array of `shape`."""
    index: list[Index] = []
    for axis in range(len(shape) - 1, -1, -1):
        is_leading = all(size.constant == 1 for size in shape[:axis])
        index.append(flat if is_leading and shape[axis].constant != 1 else flat % shape[axis])
        flat = ZERO if is_leading else flat // shape[axis]
    return tuple(reversed(index))


def unravel_safe(flat: Index, shape: Sequence[Index]) -> tuple[Index, ...]:
    """Return the same as `unravel`, with 0 for every dim of size 1."""
    kept = [size for size in shape if size.constant != 1]
    positions = iter(unravel(flat, kept))
    return tuple(ZERO if size.constant == 1 else next(positions) for size in shape)


def unravel_like(flat: Index, seed_shape: Sequence[Index], shape: Sequence[Index]) -> tuple[Index, ...]:
    """Return the index at flat position of `shape`, through `seed_shape` where the two differ."""
    if tuple(seed_shape) == tuple(shape):
        return unravel_safe(flat, shape)
    return reshape(unravel_safe(flat, seed_shape), seed_shape, shape)


def reshape(index: Sequence[Index], shape: Sequence[Index], source: Sequence[Index]) -> tuple[Index, ...]:
    """Return the index into the row-major reshape `source` of element `index` of an array of `shape`.

    Runs of dims with equal products are matched first, so that untouched dims keep their index.
    """
    taken = [(position, size) for position, size in zip(index, shape, strict=True) if size.constant != 1]
    kept = [(axis, size) for axis, size in enumerate(source) if size.constant != 1]
    result = [ZERO] * len(source)
    while taken or kept:
        n_taken, n_kept = _matching_run([size for _, size in taken], [size for _, size in kept])
        run, sizes = taken[:n_taken], [size for _, size in kept[:n_kept]]
        flat = ravel([position for position, _ in run], [size for _, size in run])
        for (axis, _), position in zip(kept[:n_kept], unravel(flat, sizes), strict=True):
            result[axis] = position
        taken, kept = taken[n_taken:], kept[n_kept:]
    return tuple(result)


def _matching_run(left: list[Index], right: list[Index]) -> tuple[int, int]:
    """Return the lengths of the shortest prefixes with equal products; of both lists when no shorter ones match."""
    for n_left in range(1, len(left) + 1):
        for n_right in range(1, len(right) + 1):
            if product(left[:n_left]) == product(right[:n_right]):
                return n_left, n_right
    return len(left), len(right)


def divides(divisor: int, index: Index) -> bool:
    """Return True if every value of the index is provably a multiple of `divisor`."""
    return all(factor % divisor == 0 for _, factor in index.terms)


def coefficient(index: Index, variable: Variable) -> Index | None:
    """Return the c of ``index == c * variable + rest`` with neither c nor rest over the variable; None when there is
    none."""
    terms: dict[Monomial, int] = {}
    for monomial, factor in index.terms:
        n_direct = sum(atom == variable for atom in monomial)
        if n_direct > 1 or any(variable in atom.variables and atom != variable for atom in monomial):
            return None
        if n_direct:
            rest = tuple(atom for atom in monomial if atom != variable)
            terms[rest] = terms.get(rest, 0) + factor
    return Index(terms)
