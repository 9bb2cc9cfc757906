"""Represent what a simulated block computes: one number for all threads or one for each, and what it depends on."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import repeat

from kernel_lsp.rules.cuda.literals import quotient, remainder

SIZE = 1
"""Origin of a number: a size that the text does not say."""
BLOCK = 2
"""The index of the block."""
DATA = 4
"""Loaded data."""
ELECTED = 8
"""The result of an atomic operation, or of one among the threads of a warp."""
FOREIGN = 16
"""A name or a function of another file."""
LOADED = 32
"""An element that the block's index chose."""
GUESSED = 64
"""The size of a block, where the text does not say it."""
CHOSEN = 128
"""An element that all threads of a block load."""
MIXED = 2048
"""A quotient, a remainder or bits by a size that the text does not say: equal elements are chance."""
ALONG = (256, 512, 1024)
"""The index of the block along x, y and z, beside `BLOCK`."""
Number = int | list[int] | None
"""One number for all threads, one for each thread, or an unknown one."""
Mask = list[bool] | None
"""The threads that execute a statement; None for all."""
UNSIGNED = 1 << 32
_UNSIGNED = re.compile(r"unsigned|uint|size_t|uchar")
_NARROW = re.compile(r"char|short|\bu?int(?:8|16)_t")
OF_FLOATS = re.compile(r"(?:const\s+)?(?:float|double|__?half|half|__nv_bfloat16)\d\b")
"""The type of a vector of floating-point numbers."""
_MAX_NUMBER = 1 << 512
WARP = 32


@dataclass(eq=False, slots=True)
class Memory:
    """An array: in shared memory, in global memory, or of one thread. `extents` are its sizes, None where unknown.
    `accesses` are those since the last barrier."""

    name: str
    kind: str
    width: int
    extents: tuple[int | None, ...] = ()
    is_float: bool = True
    is_volatile: bool = False
    is_set: bool = False
    """True once anything may have set elements that are not in `written`."""
    element: str = ""
    """The type of the elements of an array or variable in shared memory."""
    members: dict[str, Value] = field(default_factory=dict)
    """The arrays that are members of a structure in shared memory."""
    accesses: list = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    limit: int | None = None
    """The bytes of dynamic shared memory that the launch gives; None where unknown."""
    is_racing: bool = False
    """True after a race, until the next barrier: what follows has the same cause."""
    is_member: bool = False
    """True for an array in a structure: that of the threads once they write to it."""
    stored: dict[int | None, Value] = field(default_factory=dict)
    """What a thread's own array holds, by the address in bytes, None for an unknown one."""
    target: Cell | None = None
    """The variable that a pointer made by ``&x`` refers to."""

    def hold(self, address: Value, value: Value) -> None:
        """Note what a thread writes to an array of its own."""
        self.kind = "local"
        at = address.number if isinstance(address.number, int) and not address.origins else None
        new, old = unknown(value), self.stored.get(at)
        new.is_own = value.is_of_each
        self.stored[at] = new if old is None else _either(old, new)

    def stored_at(self, address: Value) -> Value | None:
        """Return what an element, or any one where the address is unknown, may hold; None where nothing sets it."""
        is_known = isinstance(address.number, int) and address.number in self.stored and None not in self.stored
        if is_known and isinstance(address.number, int):
            return self.stored[address.number]
        return reduce(_either, self.stored.values()) if self.stored else None

    @property
    def n_bytes(self) -> int | None:
        total = self.width
        for extent in self.extents:
            if extent is None:
                return None
            total *= extent
        return total if self.extents else None


@dataclass(slots=True)
class Value:
    """A number, or a pointer with its offset in bytes. `varies` says whether an unknown number differs between
    threads; `loads` are the elements that it was computed from."""

    number: Number
    origins: int = 0
    varies: bool = False
    memory: Memory | None = None
    width: int = 4
    dims: tuple[int | None, ...] = ()
    loads: frozenset = frozenset()
    group: str = ""
    """The kind of a cooperative group: `block`, `tile` or `grid`."""
    of_warps: bool | None = None
    """True for a vote, and where a comparison's sides have one number for each warp, False where not; None for other
    numbers."""
    possible: list[bool] | None = None
    """The threads for which an unknown condition may hold; None for all."""
    is_own: bool = False
    """True for an unknown number that has a known part of each thread's own."""
    parts: list[int] | None = None
    """The threads whose data each thread's value contains, one bit for each; None where that is not followed."""
    members: dict[str, Cell] | None = None
    """The members of a structure; None for numbers, and for structures of which nothing is known."""

    @property
    def differs(self) -> bool:
        """Return whether the value may differ between the threads of a block."""
        return self.varies if self.number is None else isinstance(self.number, list)

    @property
    def is_of_each(self) -> bool:
        """Return whether each thread has a number of its own, or an unknown one with such a part."""
        return self.is_own or (isinstance(self.number, list) and len(set(self.number)) == len(self.number))

    @property
    def is_open(self) -> bool:
        """Return whether all threads share the value, and no launch is known by which it is what it is here."""
        return self.number is None or (bool(self.origins & ~GUESSED) and not self.differs)

    @property
    def is_of_warps(self) -> bool:
        """Return whether the threads of each warp have one number."""
        if self.of_warps is not None or not isinstance(self.number, list):
            return self.of_warps is True or (self.number is not None and not isinstance(self.number, list))
        numbers = self.number
        return all(len(set(numbers[first : first + WARP])) == 1 for first in range(0, len(numbers), WARP))


@dataclass(eq=False, slots=True)
class Cell:
    """A variable. `place` is what a reference refers to; `members` are the fields of a structure."""

    value: Value
    type_text: str = ""
    place: Place | Cell | None = None
    members: dict[str, Cell] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Place:
    """An element of an array: its address in bytes, and the field of a structure."""

    memory: Memory
    address: Value
    width: int
    member: str = ""
    problem: str = ""


UNKNOWN = Value(None, DATA, True)


def element_bytes(pointer: Value) -> int | None:
    """Return the bytes from one element of a pointer or array to the next; None where a size is unknown."""
    n_bytes: int | None = pointer.width
    for extent in pointer.dims[1:]:
        n_bytes = None if n_bytes is None or extent is None else n_bytes * extent
    return n_bytes


def room_of(base: Value, memory: Memory) -> tuple[int, int | None]:
    """Return the element of its array at which a pointer begins, 0 for a row, and the elements of the row or array;
    None where the text does not say them."""
    if base.dims:
        extent = base.dims[0]
        is_known = len(base.dims) <= len(memory.extents) and memory.extents[-len(base.dims)] == extent
        return 0, extent if is_known else None
    n_bytes, is_fixed = memory.n_bytes, isinstance(base.number, int) and not base.origins
    if memory.kind != "shared" or n_bytes is None or not is_fixed or not isinstance(base.number, int):
        return 0, None
    is_whole = base.number % base.width == 0 and n_bytes % base.width == 0
    return base.number // base.width, n_bytes // base.width if is_whole else None


def cell_of(value: Value, type_text: str = "") -> Cell:
    """Return a variable with this value and a copy of each of its members."""
    if not value.members:
        return Cell(value, type_text)
    return Cell(replace(value, members=None), type_text, None, copies(value.members))


def copies(members: dict[str, Cell]) -> dict[str, Cell]:
    """Return variables with the same values and members of their own."""
    return {
        name: Cell(each.value, each.type_text, each.place, copies(each.members) if each.members else {})
        for name, each in members.items()
    }


def _either(one: Value, two: Value) -> Value:
    """Return one of two values: it is each thread's own if both are."""
    found = unknown(one, two)
    found.is_own = one.is_own and two.is_own
    return found


def unknown(*sources: Value, origins: int = 0) -> Value:
    """Return an unknown number that differs between threads if any of its sources does."""
    loads: frozenset = frozenset()
    varies = is_own = of_warps = False
    parts: list[int] | None = None
    for source in sources:
        of_warps = of_warps or source.of_warps is True
        if source.parts is not None:
            parts = joined(parts, source.parts)
        is_own = is_own or source.is_own
        origins |= source.origins
        varies = varies or (source.varies if source.number is None else isinstance(source.number, list))
        if source.loads:
            loads = loads | source.loads if loads else source.loads
    is_of_warps = True if of_warps and all(source.is_of_warps or not source.differs for source in sources) else None
    return Value(None, origins, varies, loads=loads, is_own=is_own, parts=parts, of_warps=is_of_warps)


def joined(one: list[int] | None, two: list[int] | None) -> list[int] | None:
    """Return the contributions to a value that is made of two."""
    if one is None or two is None:
        return two if one is None else one
    return one if one is two else list(map(operator.or_, one, two))


def held(value: Value, type_text: str) -> Value:
    """Return the value as an integer type holds it: unsigned ones wrap around, narrow ones make it unknown."""
    if value.number is None:
        return value
    numbers = lanes(value.number, 1)
    if _NARROW.search(type_text):
        return value if min(numbers) >= 0 and max(numbers) < 128 else unknown(value)
    if min(numbers) >= 0 or not _UNSIGNED.search(type_text):
        return value
    wrapped = [number % UNSIGNED if number < 0 else number for number in numbers]
    return replace(value, number=wrapped if isinstance(value.number, list) else wrapped[0])


def _is_too_large(number: int | list[int]) -> bool:
    largest, smallest = (max(number), min(number)) if isinstance(number, list) else (number, number)
    return largest > _MAX_NUMBER or smallest < -_MAX_NUMBER


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": quotient, "%": remainder, "<<": operator.lshift,
    ">>": operator.rshift, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "min": min, "max": max,
}  # fmt: skip


def applied(sign: str, left: Value, right: Value) -> Value:
    """Return ``left sign right``."""
    if left.memory is not None or right.memory is not None:
        return _moved(sign, left, right)
    operation = _OPERATIONS.get(sign)
    one, two = left.number, right.number
    if operation is None or one is None or two is None or not _is_defined(sign, one, two):
        found = unknown(left, right)
        known = left if isinstance(one, list) else right
        found.is_own = found.is_own or (sign in "+-|" and isinstance(known.number, list) and not known.origins & MIXED)
        return found
    number: Number
    if isinstance(one, list):
        number = list(map(operation, one, two if isinstance(two, list) else repeat(two)))
    elif isinstance(two, list):
        number = list(map(operation, repeat(one), two))
    else:
        number = int(operation(one, two))
    if _is_too_large(number):
        return unknown(left, right)
    of_warps = None
    if sign in _COMPARISONS or left.of_warps is not None:
        of_warps = left.is_of_warps and right.is_of_warps
    origins = left.origins | right.origins
    if sign in _MIXING and (_is_open_size(left) or _is_open_size(right)):
        origins |= MIXED
    return Value(number, origins, loads=left.loads | right.loads, of_warps=of_warps)


def _is_open_size(value: Value) -> bool:
    return not isinstance(value.number, list) and value.origins & (SIZE | BLOCK) == SIZE


_MIXING = frozenset(("/", "%", "&", "|", "^", ">>"))
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))


def selected(threads: list[bool], chosen: Value, other: Value) -> Value:
    """Return the first value for these threads, and the other one for the rest."""
    if all(threads):
        return chosen
    if chosen.memory is not other.memory or chosen.number is None or other.number is None:
        found = unknown(chosen, other)
        memory = chosen.memory or other.memory
        if found.parts is not None:
            sides = [each.parts or [0] * len(threads) for each in (chosen, other)]
            found.parts = [a if is_chosen else b for is_chosen, a, b in zip(threads, *sides, strict=True)]
        width = chosen.width if chosen.memory else other.width
        return replace(found, varies=True, memory=memory, width=width, of_warps=None)
    one, two = (lanes(each.number, len(threads)) for each in (chosen, other))
    number = [a if is_chosen else b for is_chosen, a, b in zip(threads, one, two, strict=True)]
    return replace(chosen, number=number, origins=chosen.origins | other.origins, loads=chosen.loads | other.loads)


def lanes(number: Number, n_threads: int) -> list[int]:
    """Return a known number of each thread."""
    return number if isinstance(number, list) else [number or 0] * n_threads


def truths(number: Number, n_threads: int) -> list[bool]:
    """Return for each thread whether a known number is not zero."""
    return list(map(bool, number)) if isinstance(number, list) else [bool(number)] * n_threads


def _is_defined(sign: str, left: Number, right: Number) -> bool:
    if sign not in ("/", "%", "<<", ">>"):
        return True
    dividends = lanes(left, 1)
    if (sign in ("/", "%", ">>") and min(dividends) < 0) or (sign == ">>" and max(dividends) >= UNSIGNED):
        return False  # numbers of 32 bits wrap around
    if sign in ("/", "%"):
        return 0 not in right if isinstance(right, list) else right != 0
    if sign in ("<<", ">>"):
        amounts = right if isinstance(right, list) else [right or 0]
        return all(0 <= amount < 64 for amount in amounts)
    return True


def _moved(sign: str, left: Value, right: Value) -> Value:
    """Return a pointer that was moved by a number of elements."""
    if left.memory is not None and right.memory is not None:
        return unknown(left, right)
    pointer, distance = (left, right) if left.memory is not None else (right, left)
    if sign not in ("+", "-") or (sign == "-" and pointer is right):
        return unknown(left, right)
    stride = element_bytes(pointer)
    offset = UNKNOWN if stride is None else applied("*", distance, Value(stride))
    total = applied(sign, replace(pointer, memory=None, dims=()), offset)
    return replace(
        pointer,
        number=total.number,
        origins=total.origins,
        varies=total.varies,
        loads=total.loads,
        is_own=total.is_own,
    )


def key_of(address: Value) -> object:
    """Return a key that is equal for equal addresses."""
    if isinstance(address.number, list):
        return tuple(address.number)
    if address.number is not None:
        return address.number
    return ("?", address.loads) if address.loads else id(address)
