"""Emit the LLVM IR of a thread's registers: operands read and written, and their places in the thread's frame.

Every PTX register is an `alloca`, which LLVM promotes to SSA values. Registers live across a yield are saved in the
thread's frame.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from kernel_lsp.ptx.analysis.variable_places import ApartPlaces, Places, shared_layout
from kernel_lsp.ptx.compile.ir_text import IrText
from kernel_lsp.ptx.compile.special_registers import special_register
from kernel_lsp.ptx.run.layout import PARAM_WINDOW, Launch, Thread, window_base
from kernel_lsp.ptx.text.syntax import (
    CARRY,
    WIDTH_BITS,
    Function,
    Immediate,
    Negated,
    Operand,
    Register,
    Symbol,
    UnsupportedPtxError,
    Variable,
)

FRAME_SLOT_BYTES = 8
INTEGER_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128}
FLOATING = {"float": "i32", "double": "i64"}
UNSET_FLOAT = "0x7FFC5A3960000000"
"""NaN pattern of unset registers, representable in f64 and f32."""
UNSET_PREDICATE = "%unset"
UNSET_FACTOR = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Odd multiplier with bits spread over 128, for unset registers of up to 128 bits."""
WAY_FACTOR = 0x9E3779B97F4A7C15
"""Odd multiplier for the path hash: 2^64 divided by the golden ratio."""


def llvm_type(ptx_type: str) -> str:
    """Return the LLVM type that holds a register of a PTX type. 16-bit floats are held as their bits."""
    if ptx_type in ("f32", "f64"):
        return "float" if ptx_type == "f32" else "double"
    return f"i{WIDTH_BITS[ptx_type]}"


class RegisterIr(IrText):
    """Hold where the registers and variables of one kernel's threads are."""

    def __init__(self, kernel: Function, symbols: dict[str, int], shared_variables: Sequence[Variable]) -> None:
        super().__init__()
        self.symbols = symbols
        self.shared = shared_layout(kernel, shared_variables)
        self.parameters, self.local, self.arguments = Places(), ApartPlaces(), Places()
        for variable in kernel.parameters:
            self.parameters.add(variable)
        for variable in kernel.variables:
            if variable.space in ("local", "param"):
                (self.local if variable.space == "local" else self.arguments).add(variable)
        self.storage = {name: llvm_type(kind) for name, kind in kernel.registers.items()}
        self.storage[CARRY] = "i1"
        self.slots: dict[str, int] = {}
        self.used_registers: dict[str, None] = {}

    def read(self, operand: Operand, wanted: str) -> str:
        """Return the operand as a value of the LLVM type `wanted`.
        Wider registers are truncated, narrower ones zero-extended."""
        match operand:
            case Immediate():
                return self.literal(operand, wanted)
            case Negated(register):
                return self.op(f"xor i1 true, {self.read(register, 'i1')}")
            case Register(name) if name in self.storage:
                self.used_registers[name] = None
                held = self.storage[name]
                return self.coerce(self.op(f"load {held}, ptr {_slot_name(name)}"), held, wanted)
            case Register(name):
                return self.coerce(self.special(name), "i64" if name.endswith("64") else "i32", wanted)
            case Symbol(name, offset) if name in self.shared.offsets:
                place = self.shared.offsets[name] + offset
                return self.coerce(self.op(f"add i64 {self.launch_field(Launch.SHARED_START)}, {place}"), "i64", wanted)
            case Symbol():
                return self.coerce(str(self.address_of(operand)), "i64", wanted)
        raise UnsupportedPtxError(f"an operand of this kind: {operand}")

    def write(self, operand: Operand, value: str, given: str, *, is_signed: bool = False) -> None:
        """Set a register to a value of LLVM type `given`, extended or truncated to the register. ``_`` is a sink."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return
        if not isinstance(operand, Register) or operand.name not in self.storage:
            raise UnsupportedPtxError(f"a result in {operand}")
        held = self.storage[operand.name]
        self.used_registers[operand.name] = None
        self.line(
            f"store {held} {self.coerce(value, given, held, is_signed=is_signed)}, ptr {_slot_name(operand.name)}"
        )

    def literal(self, immediate: Immediate, wanted: str) -> str:
        if wanted in FLOATING:
            integer = FLOATING[wanted]
            bits = immediate.bits & ((1 << INTEGER_BITS[integer]) - 1)
            return f"bitcast ({integer} {bits} to {wanted})"
        bits = immediate.bits & ((1 << INTEGER_BITS[wanted]) - 1)
        return ("true" if bits else "false") if wanted == "i1" else str(bits)

    def coerce(self, value: str, given: str, wanted: str, *, is_signed: bool = False) -> str:
        """Reinterpret floats and integers of one width as each other; extend or truncate integers."""
        if given == wanted:
            return value
        if given in FLOATING:
            return self.coerce(self.op(f"bitcast {given} {value} to {FLOATING[given]}"), FLOATING[given], wanted)
        if wanted in FLOATING:
            bits = self.coerce(value, given, FLOATING[wanted], is_signed=is_signed)
            return self.op(f"bitcast {FLOATING[wanted]} {bits} to {wanted}")
        if INTEGER_BITS[given] > INTEGER_BITS[wanted]:
            return self.op(f"trunc {given} {value} to {wanted}")
        return self.op(f"{'sext' if is_signed else 'zext'} {given} {value} to {wanted}")

    def address_of(self, symbol: Symbol) -> int:
        """Return a variable's address for `mov`: an offset for a local variable, otherwise generic."""
        for offsets, base in (
            (self.local.offsets, 0),
            (self.parameters.offsets, window_base(PARAM_WINDOW)),
            (self.symbols, 0),
        ):
            if symbol.name in offsets:
                return base + offsets[symbol.name] + symbol.offset
        raise UnsupportedPtxError(f"the address of '{symbol.name}'")

    def special(self, name: str) -> str:
        """Return a special register as i32, or as i64 when its name ends in 64."""
        return special_register(self, name)

    def launch_field(self, field_offset: int) -> str:
        return self.op(f"load i64, ptr {self.field('%launch', field_offset)}")

    def thread_field(self, field_offset: int) -> str:
        return self.op(f"load i64, ptr {self.field('%thread', field_offset)}")

    def store_thread_field(self, field_offset: int, value: str) -> None:
        self.line(f"store i64 {value}, ptr {self.field('%thread', field_offset)}")

    def slot(self, name: str) -> int:
        if name not in self.slots:
            self.slots[name] = Thread.FRAME + FRAME_SLOT_BYTES * len(self.slots)
        return self.slots[name]

    def save(self, name: str) -> None:
        held = self.storage[name]
        self.used_registers[name] = None
        value = self.op(f"load {held}, ptr {_slot_name(name)}")
        if held == "i1":
            value, held = self.op(f"zext i1 {value} to i8"), "i8"
        if held == "i128":
            raise UnsupportedPtxError("a 128-bit register that lives across a barrier")
        self.line(f"store {held} {value}, ptr {self.field('%thread', self.slot(name))}")

    def restore(self, name: str) -> None:
        held = self.storage[name]
        loaded = "i8" if held == "i1" else held
        value = self.op(f"load {loaded}, ptr {self.field('%thread', self.slot(name))}")
        if held == "i1":
            value = self.op(f"trunc i8 {value} to i1")
        self.line(f"store {held} {value}, ptr {_slot_name(name)}")

    def allocations(self, kernel_name: str) -> list[str]:
        """Return the IR that allocates the used registers and gives each its unset value."""
        lines = []
        if any(self.storage[name] == "i1" for name in self.used_registers):
            lines += [
                f"  %unset.mixed = mul i64 %thread.i, {WAY_FACTOR}",
                "  %unset.top = lshr i64 %unset.mixed, 63",
                f"  {UNSET_PREDICATE} = trunc i64 %unset.top to i1",
            ]
        for name in self.used_registers:
            held, unset = self.storage[name], _unset(self.storage[name], f"{kernel_name}.{name}")
            lines += [f"  {_slot_name(name)} = alloca {held}", f"  store {held} {unset}, ptr {_slot_name(name)}"]
        return lines


def _unset(held: str, name: str) -> str:
    """Return the initial value of a register: distinct bits per register, and a NaN for floats.
    A predicate is true in some threads and false in others."""
    if held == "i1":
        return UNSET_PREDICATE if name.rpartition(".")[2] != CARRY else "0"
    if held in FLOATING:
        return UNSET_FLOAT
    return str(zlib.crc32(name.encode()) * UNSET_FACTOR % (1 << int(held.removeprefix("i"))))


def _slot_name(name: str) -> str:
    """Return the LLVM name of a register's `alloca`."""
    return f'%"r.{name}"'
