"""Index arithmetic: integer polynomials over sizes and index variables, in a canonical form.

Views, permutes, slices and reshapes are substitutions here, so that they never become kernels. Simplification knows
the range of every variable: with ``k`` in [0, 64), ``k // 64`` is 0 and ``k % 64`` is ``k``. Two indices are equal
exactly when their canonical forms are, which their digests tell.

Divisors are sizes of dims that a kernel loops over: where one is 0 the loop does not run, so they count as positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import _lru_cache_wrapper, lru_cache, reduce
from math import gcd

from kernel_lsp.generate.ir.atoms import (
    Atom,
    Indirect,
    Monomial,
    Quotient,
    Remainder,
    Symbol,
    Variable,
    atom_key,
    term_key,
)
from kernel_lsp.generate.ir.digest import Digested, digest_of

CACHED_RESULTS = 1 << 15
"""Maximum cached divisions and proofs: the schedules of one program repeat the same ones."""


class Index(Digested):
    """A polynomial: `terms` pairs each monomial with its coefficient, in a canonical order."""

    __slots__ = ("_digest", "_reads_memory", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = [(monomial, factor) for monomial, factor in terms.items() if factor]
        self.terms = tuple(sorted(kept, key=term_key) if len(kept) > 1 else kept)
        self._digest: bytes | None = None
        self._reads_memory: bool | None = None
        self.variables = frozenset().union(*[atom.variables for monomial, _ in self.terms for atom in monomial])

    def scaled(self, factor: int) -> Index:
        """Return the product with a number, whose terms keep their order."""
        if factor == 1:
            return self
        if not factor:
            return ZERO
        product = object.__new__(Index)
        product.terms = tuple((monomial, factor * own) for monomial, own in self.terms)
        product._digest, product._reads_memory, product.variables = None, self._reads_memory, self.variables
        return product

    @property
    def digest(self) -> bytes:  # type: ignore[override]  # an attribute there
        """Computed on first use: most indices are intermediate results."""
        if self._digest is None:
            parts = [part for monomial, factor in self.terms for part in (factor, *(atom.digest for atom in monomial))]
            self._digest = digest_of("index", *parts)
        return self._digest

    @property
    def reads_memory(self) -> bool:
        """Return True if the value of an `Indirect` is part of it."""
        if self._reads_memory is None:
            self._reads_memory = any(atom.reads_memory for monomial, _ in self.terms for atom in monomial)
        return self._reads_memory

    @property
    def constant(self) -> int | None:
        """Return the integer value, or None for an index that is not constant."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @property
    def atom(self) -> Atom | None:
        """Return the atom that the index is equal to, or None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def __add__(self, other: Index | int) -> Index:
        return _recombined(_sum(self, as_index(other), 1))

    __radd__ = __add__

    def __sub__(self, other: Index | int) -> Index:
        return _recombined(_sum(self, as_index(other), -1))

    def __rsub__(self, other: int) -> Index:
        return as_index(other) - self

    def __mul__(self, other: Index | int) -> Index:
        other, terms = as_index(other), dict[Monomial, int]()
        if (number := other.constant) is not None:
            return self.scaled(number)
        if (number := self.constant) is not None:
            return other.scaled(number)
        for left, left_factor in self.terms:
            for right, right_factor in other.terms:
                monomial = _sorted(left + right)
                terms[monomial] = terms.get(monomial, 0) + left_factor * right_factor
        return Index(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index | int) -> Index:
        return _floor_divide(self, as_index(other))

    def __mod__(self, other: Index | int) -> Index:
        return _remainder(self, as_index(other))

    def __repr__(self) -> str:
        names = [[getattr(atom, "name", type(atom).__name__) for atom in monomial] for monomial, _ in self.terms]
        return " + ".join("*".join([str(term[1]), *own]) for term, own in zip(self.terms, names, strict=True)) or "0"


def as_index(value: Index | Atom | int) -> Index:
    """Return `value` as a polynomial."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int):
        return _integer(value)
    alone: Index | None = getattr(value, "as_index", None)
    if alone is None:
        alone = value.as_index = Index({(value,): 1})
    return alone


@lru_cache(maxsize=4096)
def _integer(value: int) -> Index:
    return Index({(): value})


ZERO, ONE = as_index(0), as_index(1)


def product(factors: Iterable[Index]) -> Index:
    """Return the product of the factors; 1 for none."""
    return reduce(lambda left, right: left * right, factors, ONE)


def replace_atoms(index: Index, replacement: Callable[[Atom], Index]) -> Index:
    """Return the simplified index with every atom replaced."""
    total = ZERO
    for monomial, factor in index.terms:
        term = product(map(replacement, monomial))
        total = _sum(total, term, factor)
    return _recombined(total)


def substitute(
    index: Index, replacements: Mapping[Variable, Index], replaced: dict[Atom, Index] | None = None
) -> Index:
    """Return the simplified index with variables replaced. `replaced` keeps what the atoms of other indices became,
    under the same replacements."""
    if index.variables.isdisjoint(replacements):
        return index
    known = {} if replaced is None else replaced

    def replacement(atom: Atom) -> Index:
        if atom.variables.isdisjoint(replacements):
            return as_index(atom)
        found = known.get(atom)
        if found is None:
            found = known[atom] = _substitute_atom(atom, replacements, known)
        return found

    return replace_atoms(index, replacement)


@lru_cache(maxsize=CACHED_RESULTS)
def is_nonnegative(index: Index) -> bool:
    """Return True if the index is provably >= 0 for all variables in range and sizes at or above their minimum."""
    lower = _bound(index, -1)
    if lower is None:
        return False
    if _has_no_negative_term(lower):
        return True
    exact = expanded(lower)
    return _has_no_negative_term(exact) or _has_no_negative_term(_without_quotients(exact))


def is_below(index: Index, limit: Index) -> bool:
    """Return True if ``index < limit`` is provable."""
    return is_nonnegative(limit - index - 1)


def divide_exactly(index: Index, divisor: Index) -> Index | None:
    """Return the q with ``index == q * divisor`` for a divisor of one term, or None."""
    quotient, rest = _split_multiple(index, divisor)
    return quotient if not rest.terms else None


def expanded(index: Index) -> Index:
    """Return the index over the task's own dims, without derived symbols. Equal sizes have equal expansions."""
    if not any(_exact(atom) is not None for monomial, _ in index.terms for atom in monomial):
        return index
    return replace_atoms(index, lambda atom: _exact(atom) or as_index(atom))


def _exact(atom: Atom) -> Index | None:
    """Return a derived size as an index over the task's own dims."""
    return atom.exact if isinstance(atom, Symbol) else None


def _sorted(monomial: Monomial) -> Monomial:
    return tuple(sorted(monomial, key=atom_key))


def _sum(left: Index, right: Index, times: int) -> Index:
    """Return ``left + times * right``, without a simplification of quotients and remainders."""
    if not right.terms:
        return left
    if not left.terms:
        return right.scaled(times)
    terms = dict(left.terms)
    for monomial, factor in right.terms:
        terms[monomial] = terms.get(monomial, 0) + times * factor
    return Index(terms)


def _substitute_atom(atom: Atom, replacements: Mapping[Variable, Index], replaced: dict[Atom, Index]) -> Index:
    match atom:
        case Variable():
            return replacements.get(atom, as_index(atom))
        case Quotient() | Remainder():
            parts = (atom.dividend, atom.divisor)
            dividend, divisor = (substitute(part, replacements, replaced) for part in parts)
            return dividend // divisor if isinstance(atom, Quotient) else dividend % divisor
        case Indirect():
            return as_index(Indirect(atom.scalar.substitute(replacements)))
    return as_index(atom)


def _split_multiple(index: Index, divisor: Index) -> tuple[Index, Index]:
    """Split `index` into ``quotient * divisor + rest``, term by term. The divisor has one term."""
    if len(divisor.terms) != 1:
        return (ONE, ZERO) if index == divisor else (ZERO, index)
    atoms, factor = divisor.terms[0]
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient_ in index.terms:
        remaining = _without(monomial, atoms)
        if remaining is None:
            rest[monomial] = coefficient_
            continue
        multiple, left_over = divmod(coefficient_, factor)
        quotient[remaining] = multiple
        rest[monomial] = left_over
    return Index(quotient), Index(rest)


def _without(monomial: Monomial, atoms: Monomial) -> Monomial | None:
    remaining = list(monomial)
    for atom in atoms:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining)


def _kept(division: _lru_cache_wrapper[Index], index: Index, divisor: Index) -> Index:
    """Return a division, from the cache where it reads no memory: tensors of another program may have the same names
    and numbers."""
    uncached = index.reads_memory or divisor.reads_memory
    return division.__wrapped__(index, divisor) if uncached else division(index, divisor)


def _floor_divide(index: Index, divisor: Index) -> Index:
    return _kept(_quotient, index, divisor)


@lru_cache(maxsize=CACHED_RESULTS)
def _quotient(index: Index, divisor: Index) -> Index:
    if divisor.constant == 1:
        return index
    if divisor.constant == 0:
        return as_index(Quotient(index, divisor))
    quotient, rest = _split_multiple(index, divisor)
    if not rest.terms or (is_nonnegative(rest) and is_below(rest, divisor)):
        return quotient
    atom = rest.atom
    if isinstance(atom, Quotient):
        return quotient + _floor_divide(atom.dividend, atom.divisor * divisor)
    if isinstance(atom, Remainder) and (ratio := divide_exactly(atom.divisor, divisor)) is not None:
        return quotient + _remainder(_floor_divide(atom.dividend, divisor), ratio)
    coarse = _coarse_part(rest, divisor)
    if coarse is not None:
        return quotient + _floor_divide(coarse.multiple, coarse.divisor)
    if quotient.terms and not is_nonnegative(rest) and is_nonnegative(index):
        return as_index(Quotient(index, divisor))  # a dividend >= 0, which C's division rounds down
    return _sum(quotient, as_index(Quotient(rest, divisor)), 1)


def _remainder(index: Index, divisor: Index) -> Index:
    return _kept(_rest_of, index, divisor)


@lru_cache(maxsize=CACHED_RESULTS)
def _rest_of(index: Index, divisor: Index) -> Index:
    if divisor.constant == 1:
        return ZERO
    if divisor.constant == 0:
        return as_index(Remainder(index, divisor))
    quotient, rest = _split_multiple(index, divisor)
    if not rest.terms or (is_nonnegative(rest) and is_below(rest, divisor)):
        return rest
    if quotient.terms and not is_nonnegative(rest) and is_nonnegative(index):
        return as_index(Remainder(index, divisor))
    coarse = _coarse_part(rest, divisor)
    if coarse is not None:
        return _remainder(coarse.multiple, coarse.divisor) * coarse.step + coarse.rest
    atom = rest.atom
    if isinstance(atom, Remainder) and divide_exactly(atom.divisor, divisor) is not None:
        return _remainder(atom.dividend, divisor)
    return as_index(Remainder(rest, divisor))


@dataclass(frozen=True)
class _CoarsePart:
    """``index == multiple * step + rest`` with rest in [0, step), and a divisor of ``divisor * step``."""

    multiple: Index
    divisor: Index
    step: Index
    rest: Index


def _coarse_part(index: Index, divisor: Index) -> _CoarsePart | None:
    """Split ``4 * p + v`` with v in [0, 4) for a division by 4096, which is then p divided by 1024; and ``C * p + v``
    with v in [0, C) for a division by ``B * C``, with sizes or a number as B, and a number of sizes as C."""
    if len(divisor.terms) != 1:
        return None
    atoms, scale = divisor.terms[0]
    steps = {gcd(scale, factor) for _, factor in index.terms} - {1}
    for step in sorted(steps, reverse=True):
        multiple = {monomial: factor // step for monomial, factor in index.terms if factor % step == 0}
        rest = Index({monomial: factor for monomial, factor in index.terms if factor % step})
        if is_nonnegative(rest) and is_below(rest, as_index(step)):
            return _CoarsePart(Index(multiple), _scaled_down(divisor, step), as_index(step), rest)
    shared = ((_common_atoms(monomial, atoms), gcd(scale, factor)) for monomial, factor in index.terms)
    for common, times in dict.fromkeys((common, times) for common, most in shared for times in sorted({1, most})):
        if common and (len(common) < len(atoms) or scale > times):
            symbols = Index({common: times})
            quotient, rest = _split_multiple(index, symbols)
            if is_nonnegative(rest) and is_below(rest, symbols):
                return _CoarsePart(quotient, _split_multiple(divisor, symbols)[0], symbols, rest)
    return None


def _common_atoms(left: Monomial, right: Monomial) -> Monomial:
    """Return the atoms of both monomials, each as often as both have it."""
    return tuple(atom for atom in dict.fromkeys(right) for _ in range(min(left.count(atom), right.count(atom))))


def _scaled_down(index: Index, factor: int) -> Index:
    return Index({monomial: value // factor for monomial, value in index.terms})


def _recombined(index: Index) -> Index:
    """Simplify ``k*m*(x // m) + k*(x % m)`` to ``k*x``, and ``k*m*((x // m) % h) + k*(x % m)`` to ``k*(x % (h*m))``."""
    for monomial, factor in index.terms if len(index.terms) > 1 else ():
        for atom in monomial:
            if isinstance(atom, Remainder):
                simpler = _recombine(index, monomial, factor, atom)
                if simpler is not None:
                    return simpler
    return index


def _recombine(index: Index, monomial: Monomial, factor: int, low: Remainder) -> Index | None:
    outer = Index({_without(monomial, (low,)) or (): factor})
    terms = dict(index.terms)
    for high, merged in _partners(index, low):
        partner = outer * low.divisor * as_index(high)
        if len(partner.terms) == 1 and terms.get(partner.terms[0][0]) == partner.terms[0][1]:
            del terms[monomial], terms[partner.terms[0][0]]
            return Index(terms) + outer * merged
    return None


def _partners(index: Index, low: Remainder) -> list[tuple[Atom, Index]]:
    """Return the atoms that merge with ``x % m``, each with the merged result."""
    quotient = low.dividend // low.divisor
    found: list[tuple[Atom, Index]] = []
    for monomial, _ in index.terms:
        for atom in monomial:
            if as_index(atom) == quotient:
                found.append((atom, low.dividend))
            elif isinstance(atom, Remainder) and atom.dividend == quotient:
                found.append((atom, low.dividend % (low.divisor * atom.divisor)))
    return found


def _bound(index: Index, direction: int) -> Index | None:
    """Return the lower (-1) or upper (+1) bound over all variables, as a polynomial of sizes; None when unknown."""
    total = ZERO
    for monomial, factor in index.terms:
        bound = _monomial_bound(monomial, direction if factor > 0 else -direction)
        if bound is None:
            return None
        total = _sum(total, bound * factor, 1)
    return total


def _monomial_bound(monomial: Monomial, direction: int) -> Index | None:
    bound = ONE
    for atom in monomial:
        atom_bound = _atom_bound(atom, direction)
        if atom_bound is None:
            return None
        bound = bound * atom_bound
    return bound


def _atom_bound(atom: Atom, direction: int) -> Index | None:
    """Return a bound of an atom that is never negative; None for other atoms."""
    match atom:
        case Symbol():
            return as_index(atom)
        case Variable():
            return ZERO if direction < 0 else atom.extent - 1
        case Remainder():
            return ZERO if direction < 0 else atom.divisor - 1
        case Quotient() if not is_nonnegative(atom.dividend):
            return None
        case Quotient() if not atom.variables:
            return as_index(atom)
        case Quotient():
            return ZERO if direction < 0 else _quotient_upper(atom)
    return None


def _quotient_upper(atom: Quotient) -> Index | None:
    upper = _bound(atom.dividend, 1)
    if upper is None:
        return None
    exact = divide_exactly(upper + 1, atom.divisor)
    return exact - 1 if exact is not None else upper // atom.divisor


def _has_no_negative_term(index: Index) -> bool:
    return all(factor >= 0 for _, factor in _above_minimum(index).terms)


def _without_quotients(index: Index) -> Index:
    """Return a lower bound of the index: ``q = a // m`` is at most ``a / m`` and at least ``(a - m + 1) / m``."""
    total = ZERO
    for monomial, factor in index.terms:
        term = Index({monomial: factor})
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, Quotient) and (step := atom.divisor.constant) and factor % step == 0:
            bound = atom.dividend if factor < 0 else atom.dividend - (step - 1)
            term = bound * (factor // step)
        total = _sum(total, term, 1)
    return total


def _above_minimum(index: Index) -> Index:
    """Return the index as a polynomial over the excess of each size above its minimum. It is >= 0 if all coefficients
    are."""
    total = ZERO
    for monomial, factor in index.terms:
        term = as_index(factor)
        for atom in monomial:
            above = as_index(atom)
            term = term * (above + atom.minimum if isinstance(atom, Symbol) else above)
        total = _sum(total, term, 1)
    return total
