"""Questions about the terms of an index."""

from __future__ import annotations

from kernel_lsp.generate.ir.index import Index, Monomial, Variable


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
