"""Syntax tree of a PTX text, as frozen data: functions, variables, instructions, operands, source locations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

_TYPES = "b8 u8 s8 b16 u16 s16 f16 bf16 b32 u32 s32 f32 f16x2 u16x2 s16x2 bf16x2 tf32 b64 u64 s64 f64 f32x2 b128"
WIDTH_BITS = {"pred": 1, **{name: prod(map(int, re.findall(r"\d+", name))) for name in _TYPES.split()}}
"""Width in bits of each supported PTX type."""
CARRY = "%CC"
"""Condition code register of `add.cc` and similar instructions."""
_WITHOUT_RESULT = frozenset(
    (
        *("st", "red", "bar", "barrier", "membar", "fence", "trap", "brkpt", "call", "cp", "nanosleep", "stmatrix"),
        *("prefetch", "prefetchu", "discard", "applypriority", "griddepcontrol", "pmevent", "setmaxnreg"),
    )
)
_UPDATING = frozenset(("wgmma",))
"""Opcodes whose result is also an operand."""
_WITH_CARRY_IN = frozenset(("addc", "subc", "madc"))


@dataclass(frozen=True, slots=True)
class Location:
    """Represent a `.loc`. `inlined_at` is the call site of inlined code."""

    file: int
    line: int
    column: int
    function: str | None = None
    inlined_at: Location | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """Represent a register, renamed to be unique in its function. Special registers keep their ``%`` name."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """Represent a literal.
    `bits` is its two's complement or IEEE pattern; `width` is 0 for integers, 32 or 64 for floats."""

    bits: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """Represent a variable, parameter, function or label by name, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """Represent ``[base + offset]``, or ``[base, {coordinates}]`` of a tensor map."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """Represent ``{a, b, ...}`` or a parenthesised list of a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """Represent ``!%p``."""

    register: Register


@dataclass(frozen=True, slots=True)
class Pair:
    """Represent ``%d|%p``, two results."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Address | Vector | Negated | Pair


def registers_of(operand: Operand) -> Iterator[str]:
    """Return the names of the registers in an operand."""
    match operand:
        case Register(name):
            yield name
        case Negated(register):
            yield register.name
        case Vector(elements):
            for element in elements:
                yield from registers_of(element)
        case Pair(first, second):
            yield from registers_of(first)
            yield from registers_of(second)
        case Address(base, _, coordinates):
            for part in (base, *coordinates):
                yield from registers_of(part)


@dataclass(frozen=True, slots=True)
class Guard:
    """Represent ``@%p`` or ``@!%p``."""

    register: Register
    is_negated: bool


@dataclass(frozen=True)
class Instruction:
    """Represent ``@guard opcode.modifiers operands;``, with its source text for messages."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    location: Location | None
    text: str

    def has(self, *modifiers: str) -> bool:
        """Check whether any of the modifiers is present."""
        for modifier in modifiers:  # noqa: SIM110 (`any` takes three times as long, and a network asks 2 million times)
            if modifier in self.modifiers:
                return True
        return False

    @cached_property
    def defined(self) -> tuple[str, ...]:
        """Return the names of the registers that it writes."""
        carry = (CARRY,) if "cc" in self.modifiers else ()
        return (*registers_of(self.operands[0]), *carry) if self._has_result else carry

    @cached_property
    def used(self) -> tuple[str, ...]:
        """Return the names of the registers that it reads."""
        read = self.operands[1:] if self._has_result and self.opcode not in _UPDATING else self.operands
        carry = (CARRY,) if self.opcode in _WITH_CARRY_IN else ()
        return (*(name for operand in read for name in registers_of(operand)), *carry)

    @property
    def _has_result(self) -> bool:
        """Check whether the first operand is a result. Stores have an address in its place."""
        if not self.operands or isinstance(self.operands[0], Address):
            return False
        return self.opcode not in _WITHOUT_RESULT

    def types(self) -> list[str]:
        """Return the modifiers that are types, in order."""
        return [modifier for modifier in self.modifiers if modifier in WIDTH_BITS]


@dataclass(frozen=True, slots=True)
class Label:
    """Represent a branch target."""

    name: str


Statement = Instruction | Label


@dataclass(frozen=True, slots=True)
class Variable:
    """Represent a variable of a state space. `initial` are its first bytes; the rest is zero, or undefined in shared
    and local memory. `references` are (byte offset, symbol) of initialisers that hold an address. `n_bytes` is 0 for
    ``extern x[]``."""

    name: str
    space: str
    n_bytes: int
    align: int
    initial: bytes = b""
    references: tuple[tuple[int, Symbol], ...] = ()
    is_extern: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """Represent a kernel (`is_entry`) or device function. `registers` maps each register to its declared type.
    `branch_tables` maps each ``.branchtargets`` label to its labels. `max_threads` is the limit of
    ``__launch_bounds__``, 0 for none. `cluster` are the blocks per cluster from ``__cluster_dims__``, or nothing.
    `needs_cluster`: a launch must have clusters."""

    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    registers: dict[str, str]
    branch_tables: dict[str, tuple[str, ...]]
    statements: tuple[Statement, ...]
    max_threads: int = 0
    cluster: tuple[int, ...] = ()
    needs_cluster: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    """Represent a PTX file. `declared` names functions without a body (``vprintf``, ``__assertfail``)."""

    functions: dict[str, Function]
    declared: frozenset[str]
    variables: tuple[Variable, ...]
    files: dict[int, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """Strings of the debug section, by label: mangled names of inlined functions."""


class UnsupportedPtxError(Exception):
    """Report unsupported PTX. Caught at the program's edge and turned into an `Unsupported`."""

    def __init__(self, reason: str, instruction: Instruction | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.instruction = instruction
        self.module: Module | None = None
        """Module of the error, if it could be parsed; it resolves file numbers."""
