"""Index arithmetic: canonical, range-aware, and equal to what Python computes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import parse
from kernel_lsp.generate.ir.atoms import Indirect, Quotient, Remainder, Symbol, Variable
from kernel_lsp.generate.ir.index import Index, as_index, is_below, is_nonnegative, substitute
from kernel_lsp.generate.ir.scalar import Access, indirect_scalars
from kernel_lsp.generate.ir.sizes import Sizes, ravel, reshape, to_expression, unravel
from kernel_lsp.generate.ir.tensor import Buffer, Tensor


def variable(name: str, extent: int | Index) -> Variable:
    return Variable(name, sum(map(ord, name)), as_index(extent))


def value_of(index: Index, values: dict[Variable, int]) -> int:
    """The index with numbers for its variables."""
    result = substitute(index, {name: as_index(value) for name, value in values.items()}).constant
    assert result is not None
    return result


def test_division_by_an_extent_that_covers_the_variable_vanishes() -> None:
    k = as_index(variable("k", 64))
    assert k // 64 == as_index(0)
    assert k % 64 == k


def test_quotient_and_remainder_recombine() -> None:
    i = as_index(variable("i", 1000))
    assert (i // 7) * 7 + i % 7 == i
    assert (i // 35) * 35 + (i // 5 % 7) * 5 + i % 5 == i


def test_symbolic_reshape_keeps_untouched_dims() -> None:
    sizes = Sizes({"B": 1, "T": 1})
    b, t = sizes.size(parse("B")), sizes.size(parse("T"))
    i, j = as_index(variable("i", b)), as_index(variable("j", t * 12))
    index = reshape((i, j), (b, t * 12), (b, t, as_index(3), as_index(4)))
    assert index[0] == i
    assert ravel(index, (b, t, as_index(3), as_index(4))) == i * t * 12 + j


def test_positions_in_symbolic_lines_divide_through() -> None:
    """Lines of H * W elements, 64 to an image: the image and the place in it need no division by H or W."""
    sizes = Sizes({"B": 1, "H": 1, "W": 1})
    b, area = sizes.size(parse("B")), sizes.size(parse("H * W"))
    line, i = as_index(variable("line", b * 64)), as_index(variable("i", area))
    flat = line * area + i
    assert flat // (area * 64) == line // 64
    assert flat % (area * 64) == line % 64 * area + i


def test_sizes_that_are_no_products_become_symbols_that_proofs_look_through() -> None:
    sizes = Sizes({"H": 3})
    height, smaller = sizes.size(parse("H")), sizes.size(parse("H - 2"))
    row = as_index(variable("row", smaller))
    assert str(to_expression(smaller)) == "H - 2"
    assert is_below(row + 2, height)
    assert not is_below(row + 3, height)
    assert sizes.same(sizes.size(parse("H - 2")) * 4, sizes.size(parse("4 * (H - 2)")))


def test_sizes_of_one_name_keep_their_own_definitions() -> None:
    """Packs of a row are `N_packs` for each width: positions that are kept from one text had the other's launches."""
    texts = ["N // 4", "N // 8"]
    sizes = [as_index(Symbol("N_packs", 0, parse(text))) for text in texts]
    positions = [ravel((as_index(1), as_index(0)), (as_index(2), size)) for size in sizes]
    assert [str(to_expression(position)) for position in positions] == texts


def test_windows_of_a_halved_size_stay_inside() -> None:
    sizes = Sizes({"H": 2})
    height, half = sizes.size(parse("H")), sizes.size(parse("H // 2"))
    row = as_index(variable("row", half))
    assert is_below(row * 2 + 1, height)
    assert is_nonnegative(row * 2)


def test_packs_divide_through() -> None:
    pack, lane = as_index(variable("p", 4096)), as_index(variable("v", 4))
    assert (pack * 4 + lane) // 64 == pack // 16
    assert (pack * 4 + lane) % 64 == (pack % 16) * 4 + lane


EXTENTS = st.integers(1, 6)


@settings(deadline=None)
@given(st.lists(EXTENTS, min_size=1, max_size=4), st.lists(EXTENTS, min_size=1, max_size=3))
def test_unravel_is_the_inverse_of_ravel(shape: list[int], other: list[int]) -> None:
    sizes = [as_index(size) for size in shape]
    total = as_index(1)
    for size in sizes:
        total = total * size
    flat = variable("flat", total)
    index = unravel(as_index(flat), sizes)
    for position in range(total.constant or 0):
        numbers = [value_of(entry, {flat: position}) for entry in index]
        assert ravel([as_index(number) for number in numbers], sizes).constant == position


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(-12, 12), EXTENTS), min_size=1, max_size=3),
    st.integers(-5, 5),
    st.integers(1, 12),
    st.integers(1, 8),
)
def test_division_is_floor_division(terms: list[tuple[int, int]], offset: int, divisor: int, second: int) -> None:
    variables = [variable(f"x{position}", extent) for position, (_, extent) in enumerate(terms)]
    index = as_index(offset)
    for (factor, _), name in zip(terms, variables, strict=True):
        index = index + as_index(name) * factor
    quotient, remainder = index // divisor, index % divisor
    nested, mixed = (index // divisor) // second, (index // divisor) * divisor + index % divisor
    for point in itertools.product(*(range(extent) for _, extent in terms)):
        values = dict(zip(variables, point, strict=True))
        number = offset + sum(factor * at for (factor, _), at in zip(terms, point, strict=True))
        assert value_of(quotient, values) == number // divisor
        assert value_of(remainder, values) == number % divisor
        assert value_of(nested, values) == number // divisor // second
        assert value_of(mixed, values) == number


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(-6, 6), EXTENTS), min_size=1, max_size=3), st.integers(-9, 9), st.integers(1, 9))
def test_proofs_are_true(terms: list[tuple[int, int]], offset: int, divisor: int) -> None:
    variables = [variable(f"x{position}", extent) for position, (_, extent) in enumerate(terms)]
    index = as_index(offset)
    for (factor, _), name in zip(terms, variables, strict=True):
        index = index + (as_index(name) // divisor) * factor + as_index(name) % divisor
    points = list(itertools.product(*(range(extent) for _, extent in terms)))
    numbers = [value_of(index, dict(zip(variables, point, strict=True))) for point in points]
    assert not is_nonnegative(index) or min(numbers) >= 0
    for limit in (min(numbers), max(numbers), max(numbers) + 1):
        assert not is_below(index, as_index(limit)) or max(numbers) < limit


def test_equal_indices_have_equal_digests_whatever_made_them() -> None:
    i, j = as_index(variable("i", 8)), as_index(variable("j", 5))
    assert (i * 5 + j).digest == (j + i * 5).digest
    assert ((i + 1) * 3).digest == (3 + i * 3).digest
    assert Quotient(i, as_index(3)) != Remainder(i, as_index(3))


def test_terms_of_multiples_and_of_sums_with_zero_have_their_order() -> None:
    i, j = as_index(variable("i", 8)), as_index(variable("j", 5))
    index = i * 5 + j * i - j + 7
    for factor in (-3, 1, 0, 2):
        by_term = Index({monomial: own * factor for monomial, own in index.terms})
        assert (index * factor).terms == (factor * index).terms == by_term.terms
        assert (index * factor).variables == by_term.variables
    assert (index + 0).terms == (0 + index).terms == (0 - index * -1).terms == index.terms


def test_divisions_of_values_in_memory_are_of_the_tensor_that_is_asked() -> None:
    """Two captures of one file have tensors of equal names and numbers: the second had an index into the first's."""
    size = as_index(Symbol("N", 1))
    (place,) = (Variable("i", 0, size),)
    first, second = (Tensor("table", 0, DType.I64, (size,), Buffer()) for _ in range(2))
    for divided in (lambda index: index // 3, lambda index: index % 3):
        of_first, of_second = (
            divided(as_index(Indirect(Access(tensor, (as_index(place),)))) + 1) for tensor in (first, second)
        )
        assert [scalar.tensor for scalar in _reads(of_first)] == [first]
        assert [scalar.tensor for scalar in _reads(of_second)] == [second]


def test_lines_of_a_number_of_sizes_divide_by_several_of_them() -> None:
    size, line = as_index(Symbol("N", 1)), as_index(variable("line", 640))
    place = as_index(Variable("place", 1, size * 4 // 2))
    assert (line * size * 2 + place) // (size * 128) == line // 64
    assert (line * size * 2 + place) % (size * 128) == line % 64 * size * 2 + place
    pack = as_index(Variable("pack", 2, size * 4 // 8)) * 8 + as_index(variable("v", 8))
    assert (line * size * 4 + pack) // (size * 256) == line // 64


def _reads(index: Index) -> list[Access]:
    return [scalar for scalar in indirect_scalars(index) if isinstance(scalar, Access)]
