"""Loops that cannot end, and loops that nobody can tell an end of and whose work nobody uses.

What the source says of such a loop is that the kernel hangs. An assembler may drop it all the same, since it has no
effect, and then the machine code computes what is wanted, until another version of the assembler keeps the loop. So
they are looked for in the PTX, where nothing is dropped that may be endless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.ptx.text.flow import Block, build_blocks, defined, live_in, used
from kernel_lsp.ptx.text.inline import STUBBED_FUNCTIONS, inline_calls
from kernel_lsp.ptx.text.loops import Loop, loops_of
from kernel_lsp.ptx.text.syntax import (
    Immediate,
    Instruction,
    Location,
    Module,
    Operand,
    Register,
    Symbol,
    UnsupportedPtxError,
)

ENDLESS = "this loop cannot end: nothing in it changes its condition, whatever an assembler makes of it"
IDLE = "nothing says that this loop ends and nothing uses what it computes: an assembler may drop it or keep it"
PURE_OPCODES = frozenset(
    (
        *("mov", "cvt", "cvta", "add", "addc", "sub", "subc", "mul", "mul24", "mad", "mad24", "madc", "fma", "div"),
        *("rem", "abs", "neg", "min", "max", "and", "or", "xor", "not", "cnot", "shl", "shr", "shf", "lop3", "prmt"),
        *("setp", "set", "selp", "slct", "bfe", "bfi", "bfind", "brev", "clz", "popc", "fns", "szext", "bmsk", "sad"),
        *("dp2a", "dp4a", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "copysign", "testp", "isspacep"),
    )
)
"""The same operands give the same result, and nothing else happens."""
MOVING_REGISTERS = ("%clock", "%globaltimer", "%pm", "%smid", "%warpid", "%nsmid")
"""Special registers that may change while a thread runs."""
ORDERED = frozenset(("lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "ltu", "leu", "gtu", "geu"))
UNORDERED = frozenset(("eq", "ne"))
SOME_STEP = 2
"""Stands for what a register holds, e.g. the threads of a grid: not one, for all that is known."""
MAX_TURNS = 1 << 33
"""A count to a larger number is none: at a turn in a nanosecond it takes more than eight seconds."""


@dataclass(frozen=True)
class EndlessLoop:
    """A loop of the function `kernel` that cannot be accepted, and why."""

    kernel: str
    code: str
    message: str
    location: Location | None


def endless_loops(module: Module) -> Iterator[EndlessLoop]:
    """Of all kernels. A function that cannot be read is passed over: the executor says what it cannot read."""
    for function in module.functions.values():
        if function.is_entry:
            try:
                blocks = build_blocks(inline_calls(function, module))
            except UnsupportedPtxError:
                continue
            yield from endless_among(function.name, blocks)


def endless_among(kernel: str, blocks: Sequence[Block]) -> Iterator[EndlessLoop]:
    """Of one kernel, whose calls are inlined."""
    for loop in loops_of(blocks):
        if is_endless(loop):
            yield EndlessLoop(kernel, "endless-loop", ENDLESS, _location(loop))
        elif is_idle(loop):
            yield EndlessLoop(kernel, "idle-loop", IDLE, _location(loop))


def is_endless(loop: Loop) -> bool:
    """Whether no thread leaves it once it has been all the way round: every way out depends on nothing that changes."""
    if any(_may_leave(instruction) for instruction in loop.instructions()):
        return False
    changing = _changing(loop)
    return not any(name in changing or _is_moving(name) for block in loop.exits for name in _conditions(block))


def is_idle(loop: Loop) -> bool:
    """Whether all that it does is to compute what nothing uses afterwards, by steps of which no end can be told."""
    if len(loop.outside) != 1 or not all(_is_silent(instruction) for instruction in loop.instructions()):
        return False
    made = {name for instruction in loop.instructions() for name in defined(instruction)}
    return made.isdisjoint(live_in(loop.outside[0])) and not any(_counts(loop, block) for block in loop.exits)


# --- below: places and conditions


def _location(loop: Loop) -> Location | None:
    found = (instruction for block in loop.blocks for instruction in (*block.instructions, block.terminator))
    locations = (instruction.location for instruction in found if instruction is not None)
    return next((location for location in locations if location is not None and location.line), None)


def _conditions(block: Block) -> Iterator[str]:
    """What the way out of a block depends on."""
    if block.guard is not None:
        yield block.guard.register.name
    if block.selector is not None:
        yield block.selector.name


# --- below: what changes from turn to turn


def _changing(loop: Loop) -> set[str]:
    """Registers that may not hold the same in every turn: carried ones, those of more than one definition, what is read
    from where others write, and all that is computed from them."""
    instructions = list(loop.instructions())
    writes_local = any(_may_write_local(instruction) for instruction in instructions)
    changing, once = set(loop.carried()), set[str]()
    for instruction in instructions:
        names = set(defined(instruction))
        if names & once or not _is_steady(instruction, writes_local) or any(map(_is_moving, used(instruction))):
            changing |= names
        once |= names
    n_before = -1
    while len(changing) > n_before:
        n_before = len(changing)
        for instruction in instructions:
            if not changing.isdisjoint(used(instruction)):
                changing.update(defined(instruction))
    return changing


def _is_steady(instruction: Instruction, writes_local: bool) -> bool:
    """Whether it gives the same in every turn from the same operands."""
    if instruction.opcode != "ld":
        return instruction.opcode in PURE_OPCODES
    return instruction.has("param", "const", "nc") or (instruction.has("local") and not writes_local)


def _may_write_local(instruction: Instruction) -> bool:
    """Stores whose space is not named may go to the thread's own stack."""
    return instruction.opcode == "call" or (
        instruction.opcode in ("st", "atom", "red") and not instruction.has("global", "shared", "shared__cta", "param")
    )


def _is_moving(name: str) -> bool:
    return name.startswith(MOVING_REGISTERS)


def _may_leave(instruction: Instruction) -> bool:
    """A call of what is not here: it may end the thread."""
    names = {operand.name for operand in instruction.operands if isinstance(operand, Symbol)}
    return instruction.opcode == "call" and names.isdisjoint(STUBBED_FUNCTIONS)


# --- below: what comes of it


def _is_silent(instruction: Instruction) -> bool:
    """Whether nobody but the thread can tell that it was run, and when."""
    if instruction.opcode == "ld":
        return not instruction.has("volatile", "acquire", "relaxed", "mmio") or instruction.has("local")
    return instruction.opcode in PURE_OPCODES and not any(map(_is_moving, used(instruction)))


def _counts(loop: Loop, block: Block) -> bool:
    """Whether the way out compares a count: something that each turn adds a number to."""
    makers = _makers(loop.instructions())
    made = {name for instruction in loop.instructions() for name in defined(instruction)}
    for name in _conditions(block):
        comparison = makers.get(name)
        if comparison is None or comparison.opcode != "setp":
            continue
        compared = [operand for operand in comparison.operands[1:] if isinstance(operand, Register)]
        steps = {_step(operand, makers, made) for operand in compared} - {0}
        is_by_one = bool(steps & {1, -1}) and comparison.has(*UNORDERED)
        if is_by_one or (steps and comparison.has(*ORDERED)):
            return _largest_number(comparison) <= MAX_TURNS * max(map(abs, steps))
    return False


def _largest_number(comparison: Instruction) -> int:
    """Of those that it names, as its type reads them."""
    numbers = [operand.bits for operand in comparison.operands if isinstance(operand, Immediate)]
    return max((bits % (1 << 64) if comparison.has("u64") else abs(bits) for bits in numbers), default=0)


def _makers(instructions: Iterable[Instruction]) -> Mapping[str, Instruction]:
    """The instruction that makes each register, of those that one alone makes."""
    found: dict[str, Instruction | None] = {}
    for instruction in instructions:
        for name in defined(instruction):
            found[name] = None if name in found else instruction
    return {name: instruction for name, instruction in found.items() if instruction is not None}


def _step(register: Register, makers: Mapping[str, Instruction], made: Collection[str]) -> int:
    """What one turn adds to a register that is made of itself by copies and additions of what no turn changes; 0 for
    others. `made` are the registers that some instruction of the loop makes."""
    name, step = register.name, 0
    steps_at: dict[str, int] = {}
    while name not in steps_at:
        steps_at[name] = step
        instruction = makers.get(name)
        if instruction is None:
            return 0
        source, added = _source_and_step(instruction, made)
        if source is None:
            return 0
        name, step = source.name, step + added
    return step - steps_at[name]


def _source_and_step(instruction: Instruction, made: Collection[str]) -> tuple[Register | None, int]:
    """Of which register it makes its result, and what it adds; no register for anything else."""
    first, *rest = instruction.operands[1:]
    if instruction.opcode in ("mov", "cvt"):
        return (first, 0) if isinstance(first, Register) else (None, 0)
    if instruction.opcode not in ("add", "sub"):
        return None, 0
    if instruction.opcode == "add" and isinstance(first, Register) and _stays(first, made):
        first, rest = rest[0], [first]
    if not isinstance(first, Register):
        return None, 0
    if isinstance(rest[0], Immediate):
        return first, rest[0].bits if instruction.opcode == "add" else -rest[0].bits
    return (first, SOME_STEP) if _stays(rest[0], made) else (None, 0)


def _stays(operand: Operand, made: Collection[str]) -> bool:
    """Whether it is a register that holds the same in every turn."""
    return isinstance(operand, Register) and operand.name not in made and not _is_moving(operand.name)
