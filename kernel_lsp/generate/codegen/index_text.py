"""Indices as C++ integer expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.block import Block
from kernel_lsp.generate.codegen.operators import ADD, ATOM, MULTIPLY, UNARY, Text
from kernel_lsp.generate.ir.atoms import Atom, Indirect, Monomial, Quotient, Remainder, Symbol, Variable
from kernel_lsp.generate.ir.index import Index, as_index, is_below, is_nonnegative
from kernel_lsp.generate.ir.scalar import Operation, Scalar, cast

Term = tuple[Monomial, int]
LARGEST = 1 << 30
"""Maximum of positions and sizes of 32 bits, by the contract of a plan."""


@dataclass(frozen=True)
class IndexWriter:
    """Writes the indices of one block. `value` writes the scalars that indices read."""

    block: Block
    value: Callable[[Scalar], Text]

    def text(self, index: Index) -> Text:
        """Return the index, or its name if it has one."""
        known = self.block.lookup(index.digest)
        if known is not None:
            return known
        if not index.terms:
            return Text("0", ATOM)
        return self._horner(list(index.terms))

    def wide_text(self, index: Index) -> Text:
        """Return an index as a 64-bit value; its products are computed in 64 bits."""
        is_simple = all(len(monomial) <= 1 and abs(factor) == 1 for monomial, factor in index.terms if monomial)
        text = self.text(index)
        if is_simple or self.block.kernel.index_type == "long long" or _fits_int(index):
            return text
        products = [self._wide_product(term) for term in index.terms]
        if len(products) == 1:
            return products[0]
        return Text(" + ".join(product.text for product in products), ADD)

    def division_text(self, atom: Quotient | Remainder) -> Text:
        """Return the quotient or remainder itself, even if it has a name."""
        dividend = self.text(atom.dividend)
        divisor = self.text(atom.divisor)
        is_quotient = isinstance(atom, Quotient)
        if not is_nonnegative(atom.dividend):
            name = self.block.kernel.use("floor_div" if is_quotient else "floor_mod")
            return Text(f"{name}({dividend.text}, {divisor.text})", ATOM)
        if (inverse := self._inverse(atom.divisor)) is not None:
            self.block.kernel.use("size_quotient")
            name = "size_quotient" if is_quotient else "size_rest"
            return Text(f"{name}({dividend.text}, {divisor.text}, {inverse})", ATOM)
        symbol = "/" if is_quotient else "%"
        return Text(f"{dividend.within(MULTIPLY)} {symbol} {divisor.within(UNARY)}", MULTIPLY)

    def _inverse(self, divisor: Index) -> str | None:
        """Return the parameter that holds the inverse of a size of the launch; None where kernels divide seldom."""
        kernel = self.block.kernel
        if not kernel.divides_often or divisor.constant is not None or divisor.variables:
            return None
        if kernel.index_type != "int" or any(
            isinstance(a, Indirect) for monomial, _ in divisor.terms for a in monomial
        ):
            return None
        return kernel.size("inverse", as_index(LARGEST - 1) // divisor + 1)

    def _horner(self, terms: list[Term]) -> Text:
        """Print ``(n * C + c) * H + h`` rather than ``n * C * H + c * H + h``."""
        if len(terms) == 1:
            return self._product(terms[0])
        known = self.block.lookup(Index(dict(terms)).digest)
        if known is not None:
            return known
        head, last = terms[:-1], terms[-1]
        shared = _shared_size(head)
        if shared is not None and len(head) > 1:
            inner = self._horner([_divided(term, shared) for term in head])
            factor = self._product(shared)
            left = Text(f"{inner.within(MULTIPLY)} * {factor.within(UNARY)}", MULTIPLY)
        else:
            left = self._horner(head)
        return self._plus(left, last)

    def _plus(self, left: Text, term: Term) -> Text:
        monomial, factor = term
        right = self._product((monomial, abs(factor)))
        return Text(f"{left.within(ADD)} {'+' if factor > 0 else '-'} {right.within(MULTIPLY)}", ADD)

    def _product(self, term: Term) -> Text:
        monomial, factor = term
        if not monomial:
            return Text(str(factor), ATOM if factor >= 0 else UNARY)
        texts = [self._atom(atom) for atom in monomial]
        if abs(factor) == 1 and len(texts) == 1:
            return texts[0] if factor > 0 else Text(f"-{texts[0].within(UNARY)}", UNARY)
        first = texts[0].within(MULTIPLY)
        parts = [first, *(text.within(UNARY) for text in texts[1:])]
        if abs(factor) != 1:
            parts.append(str(abs(factor)))
        joined = " * ".join(parts)
        return Text(joined if factor > 0 else f"-{joined}", MULTIPLY)

    def _narrowed(self, scalar: Scalar) -> Scalar:
        """Return a position that is converted from a float as an int, which holds every position of the kernel: 64 bits
        are converted at a quarter of the rate."""
        if self.block.kernel.index_type != "int" or not isinstance(scalar, Operation) or scalar.name != "cast":
            return scalar
        is_wide = scalar.dtype == DType.I64 and scalar.operands[0].dtype.is_floating
        return cast(scalar.operands[0], DType.I32) if is_wide else scalar

    def _wide_product(self, term: Term) -> Text:
        text = self._product(term)
        return Text(f"(long long){text.within(MULTIPLY)}", max(text.precedence, MULTIPLY)) if term[0] else text

    def _atom(self, atom: Atom) -> Text:
        known = self.block.lookup(as_index(atom).digest)
        if known is not None:
            return known
        match atom:
            case Variable():
                return self.block.variable_text(atom)
            case Symbol():
                return Text(self.block.kernel.symbol(atom), ATOM)
            case Quotient() | Remainder():
                return self.division_text(atom)
            case Indirect():
                return self.value(self._narrowed(atom.scalar))
        raise KeyError(f"no text for {type(atom).__name__}")


def _fits_int(index: Index) -> bool:
    """Return True if 32 bits provably hold the index and its partial sums."""
    is_rising = all(factor > 0 for _, factor in index.terms)
    return is_rising and is_nonnegative(index) and is_below(index, as_index(1 << 31))


def _shared_size(terms: list[Term]) -> Term | None:
    """Return the product of sizes and constant that divides all terms."""
    factor = gcd(*(value for _, value in terms))
    symbols = [atom for atom in terms[0][0] if isinstance(atom, Symbol)]
    shared: list[Atom] = []
    rests = [list(monomial) for monomial, _ in terms]
    for symbol in symbols:
        if all(symbol in rest for rest in rests):
            shared.append(symbol)
            for rest in rests:
                rest.remove(symbol)
    return (tuple(shared), factor) if shared or factor > 1 else None


def _divided(term: Term, shared: Term) -> Term:
    rest = list(term[0])
    for atom in shared[0]:
        rest.remove(atom)
    return tuple(rest), term[1] // shared[1]
