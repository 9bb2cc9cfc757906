"""What a PTX text says, as frozen data: functions, variables, instructions, operands, source locations."""

from __future__ import annotations

from dataclasses import dataclass, field

WIDTH_BITS = {
    "pred": 1,
    "b8": 8,
    "u8": 8,
    "s8": 8,
    "b16": 16,
    "u16": 16,
    "s16": 16,
    "f16": 16,
    "bf16": 16,
    "b32": 32,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "f16x2": 32,
    "u16x2": 32,
    "s16x2": 32,
    "bf16x2": 32,
    "tf32": 32,
    "b64": 64,
    "u64": 64,
    "s64": 64,
    "f64": 64,
    "f32x2": 64,
    "b128": 128,
}
"""Bits of each PTX type that we know."""


@dataclass(frozen=True, slots=True)
class Location:
    """A `.loc`. `inlined_at` is the place of the call when the code was inlined."""

    file: int
    line: int
    column: int
    function: str | None = None
    inlined_at: Location | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """A register, renamed so that its name is unique in its function. Special registers keep their ``%`` name."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: `bits` is its two's complement or IEEE pattern, `width` 0 for integers, else 32 or 64 for floats."""

    bits: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, function or label by name, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``, or ``[base, {coordinates}]`` of a tensor map."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}`` or a parenthesised list of a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """``!%p``."""

    register: Register


@dataclass(frozen=True, slots=True)
class Pair:
    """``%d|%p``, two results."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Address | Vector | Negated | Pair


@dataclass(frozen=True, slots=True)
class Guard:
    """``@%p`` or ``@!%p``."""

    register: Register
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """``@guard opcode.modifiers operands;`` with its text, as written, for messages."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    location: Location | None
    text: str

    def has(self, *modifiers: str) -> bool:
        """Whether any of the modifiers is present."""
        return any(modifier in self.modifiers for modifier in modifiers)

    def types(self) -> list[str]:
        """The modifiers that are types, in order."""
        return [modifier for modifier in self.modifiers if modifier in WIDTH_BITS]


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target."""

    name: str


Statement = Instruction | Label


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a state space. `initial` are its first bytes; the rest is zero (or undefined in shared and local).
    `references` are (byte offset, symbol) of initialisers that hold an address. `n_bytes` is 0 for ``extern x[]``."""

    name: str
    space: str
    n_bytes: int
    align: int
    initial: bytes = b""
    references: tuple[tuple[int, Symbol], ...] = ()
    is_extern: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel (`is_entry`) or device function. `registers` maps each register to its declared type; `branch_tables`
    each ``.branchtargets`` label to its labels; `max_threads` is what ``__launch_bounds__`` allows, 0 for no bound.
    `cluster` are the blocks per cluster that ``__cluster_dims__`` asks for, or nothing; `needs_cluster` says that a
    launch must have clusters."""

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
    """A PTX file. `declared` names functions without a body (``vprintf``, ``__assertfail``)."""

    functions: dict[str, Function]
    declared: frozenset[str]
    variables: tuple[Variable, ...]
    files: dict[int, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """The strings of the debug section, by label: mangled names of inlined functions."""


class UnsupportedPtxError(Exception):
    """Something in the PTX that we cannot run. Caught at the program's edge and turned into an `Unsupported`."""

    def __init__(self, reason: str, instruction: Instruction | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.instruction = instruction
        self.module: Module | None = None
        """The file it is in, when that could be parsed: it knows what file numbers mean."""
