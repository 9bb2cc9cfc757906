"""Factors of an index's terms: sizes, variables, quotients, remainders, and indices that are read from memory.

They know what an index needs for its canonical order and its digest; `kernel_lsp.generate.ir.index` has the arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.ir.digest import Digested, digest_of

if TYPE_CHECKING:
    from kernel_lsp.generate.ir.index import Index


class Atom(Digested):
    """A factor of a monomial: a size, a variable, a quotient, a remainder, or a value read from memory.
    `reads_memory`: such a value is part of it."""

    __slots__ = ("as_index", "digest", "reads_memory", "sort_key")

    as_index: Index
    reads_memory: bool
    variables: frozenset[Variable]
    sort_key: tuple[int, str, bytes]


class Symbol(Atom):
    """A size known at launch: a dim of the task, or one derived from dims (`definition`)."""

    __slots__ = ("definition", "exact", "minimum", "name")

    def __init__(
        self, name: str, minimum: int = 0, definition: Expression | None = None, exact: Index | None = None
    ) -> None:
        self.name, self.minimum, self.definition, self.exact = name, minimum, definition, exact
        own = b"" if definition is None else str(definition).encode()
        self.digest = digest_of("symbol", name, minimum, own if exact is None else exact.digest)
        self.variables, self.reads_memory = frozenset(), False


class Variable(Atom):
    """An index in [0, extent). `serial` distinguishes variables of one name."""

    __slots__ = ("extent", "name", "serial")

    def __init__(self, name: str, serial: int, extent: Index) -> None:
        self.name, self.serial, self.extent = name, serial, extent
        self.digest = digest_of("variable", name, serial, extent.digest)
        self.variables, self.reads_memory = frozenset((self,)), False


class Quotient(Atom):
    """``floor(dividend / divisor)``."""

    __slots__ = ("dividend", "divisor")

    def __init__(self, dividend: Index, divisor: Index) -> None:
        self.dividend, self.divisor = dividend, divisor
        self.digest = digest_of("quotient", dividend.digest, divisor.digest)
        self.variables = dividend.variables | divisor.variables
        self.reads_memory = dividend.reads_memory or divisor.reads_memory


class Remainder(Atom):
    """``dividend - divisor * floor(dividend / divisor)``."""

    __slots__ = ("dividend", "divisor")

    def __init__(self, dividend: Index, divisor: Index) -> None:
        self.dividend, self.divisor = dividend, divisor
        self.digest = digest_of("remainder", dividend.digest, divisor.digest)
        self.variables = dividend.variables | divisor.variables
        self.reads_memory = dividend.reads_memory or divisor.reads_memory


class Indirect(Atom):
    """An index read from memory, as in a gather. `scalar` is a `kernel_lsp.generate.ir.scalar.Scalar`."""

    __slots__ = ("scalar",)

    def __init__(self, scalar: Any) -> None:
        self.scalar = scalar
        self.digest = digest_of("indirect", scalar.digest)
        self.variables = scalar.variables
        self.reads_memory = True


Monomial = tuple[Atom, ...]
_RANKS = {"Variable": 0, "Quotient": 1, "Remainder": 2, "Indirect": 3, "Symbol": 4}


def atom_key(atom: Atom) -> tuple[int, str, bytes]:
    """Return the key by which a monomial's atoms are sorted."""
    key: tuple[int, str, bytes] | None = getattr(atom, "sort_key", None)
    if key is None:
        key = atom.sort_key = (_RANKS[type(atom).__name__], getattr(atom, "name", ""), atom.digest)
    return key


def term_key(term: tuple[Monomial, int]) -> tuple[object, ...]:
    """Return the key by which a polynomial's terms are sorted: those of many factors and large coefficients first."""
    monomial, factor = term
    return -len(monomial), -abs(factor), tuple(atom_key(atom) for atom in monomial)
