"""Find endless loops, and dead loops without a provable end.

The source of such a loop says that the kernel hangs. An assembler may still remove the loop, because it has no effect.
The machine code then computes the expected result, until another assembler version keeps the loop. The search therefore
runs on the PTX, where every possibly endless loop is still present.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.ptx.text.flow import Block, Loop, build_blocks, live_in, loops_of
from kernel_lsp.ptx.text.inline import STUBBED_FUNCTIONS, inline_calls
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
"""Opcodes without side effects: equal operands give equal results."""
MOVING_REGISTERS = ("%clock", "%globaltimer", "%pm", "%smid", "%warpid", "%nsmid")
"""Special registers that may change while a thread runs."""
ORDERED = frozenset(("lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "ltu", "leu", "gtu", "geu"))
UNORDERED = frozenset(("eq", "ne"))
SOME_STEP = 2
"""Stand-in for an unknown register step, e.g. the number of threads of a grid. Assumed to differ from one."""
MAX_TURNS = 1 << 33
"""Maximum iterations of a counted loop.
At one iteration per nanosecond, a larger count takes more than eight seconds."""


@dataclass(frozen=True)
class EndlessLoop:
    """Describe a rejected loop of the function `kernel`, and the reason."""

    kernel: str
    code: str
    message: str
    location: Location | None


def endless_loops(module: Module) -> Iterator[EndlessLoop]:
    """Return the endless loops of all kernels. Unreadable functions are skipped: the executor reports them."""
    for function in module.functions.values():
        if function.is_entry:
            try:
                blocks = build_blocks(inline_calls(function, module))
            except UnsupportedPtxError:
                continue
            yield from endless_among(function.name, blocks)


def endless_among(kernel: str, blocks: Sequence[Block]) -> Iterator[EndlessLoop]:
    """Return the endless loops of one kernel, whose calls are inlined."""
    for loop in loops_of(blocks):
        if is_endless(loop):
            yield EndlessLoop(kernel, "endless-loop", ENDLESS, _location(loop))
        elif is_idle(loop):
            yield EndlessLoop(kernel, "idle-loop", IDLE, _location(loop))


def is_endless(loop: Loop) -> bool:
    """Check that no thread leaves the loop after its first iteration: every exit condition is loop-invariant."""
    if any(_may_leave(instruction) for instruction in loop.instructions()):
        return False
    changing = _changing(loop)
    return not any(name in changing or _is_moving(name) for block in loop.exits for name in _conditions(block))


def is_idle(loop: Loop) -> bool:
    """Check that the loop is dead and has no provable end: it only computes values that nothing uses afterwards."""
    if len(loop.outside) != 1 or not all(_is_silent(instruction) for instruction in loop.instructions()):
        return False
    made = {name for instruction in loop.instructions() for name in instruction.defined}
    return made.isdisjoint(live_in(loop.outside[0])) and not any(_counts(loop, block) for block in loop.exits)


def _location(loop: Loop) -> Location | None:
    found = (instruction for block in loop.blocks for instruction in (*block.instructions, block.terminator))
    locations = (instruction.location for instruction in found if instruction is not None)
    return next((location for location in locations if location is not None and location.line), None)


def _conditions(block: Block) -> Iterator[str]:
    """Return the registers that the block's exit condition depends on."""
    if block.guard is not None:
        yield block.guard.register.name
    if block.selector is not None:
        yield block.selector.name


def _changing(loop: Loop) -> set[str]:
    """Return the registers that may vary between iterations: loop-carried ones, those with several definitions, loads
    from memory that others write, and everything computed from these."""
    instructions = list(loop.instructions())
    writes_local = any(_may_write_local(instruction) for instruction in instructions)
    changing, once = set(loop.carried()), set[str]()
    for instruction in instructions:
        names = set(instruction.defined)
        if names & once or not _is_steady(instruction, writes_local) or any(map(_is_moving, instruction.used)):
            changing |= names
        once |= names
    n_before = -1
    while len(changing) > n_before:
        n_before = len(changing)
        for instruction in instructions:
            if not changing.isdisjoint(instruction.used):
                changing.update(instruction.defined)
    return changing


def _is_steady(instruction: Instruction, writes_local: bool) -> bool:
    """Check that the instruction gives the same result in every iteration for the same operands."""
    if instruction.opcode != "ld":
        return instruction.opcode in PURE_OPCODES
    return instruction.has("param", "const", "nc") or (instruction.has("local") and not writes_local)


def _may_write_local(instruction: Instruction) -> bool:
    """Check for a store to the thread's own stack. A store without a state space may be one."""
    return instruction.opcode == "call" or (
        instruction.opcode in ("st", "atom", "red") and not instruction.has("global", "shared", "shared__cta", "param")
    )


def _is_moving(name: str) -> bool:
    return name.startswith(MOVING_REGISTERS)


def _may_leave(instruction: Instruction) -> bool:
    """Check for a call of an external function, which may end the thread."""
    names = {operand.name for operand in instruction.operands if isinstance(operand, Symbol)}
    return instruction.opcode == "call" and names.isdisjoint(STUBBED_FUNCTIONS)


def _is_silent(instruction: Instruction) -> bool:
    """Check that the instruction has no effect that is observable outside the thread."""
    if instruction.opcode == "ld":
        return not instruction.has("volatile", "acquire", "relaxed", "mmio") or instruction.has("local")
    return instruction.opcode in PURE_OPCODES and not any(map(_is_moving, instruction.used))


def _counts(loop: Loop, block: Block) -> bool:
    """Check that the exit condition compares a counter: a register that each iteration increments by a number."""
    makers = _makers(loop.instructions())
    made = {name for instruction in loop.instructions() for name in instruction.defined}
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
    """Return the largest number among the operands, read as the instruction's type."""
    numbers = [operand.bits for operand in comparison.operands if isinstance(operand, Immediate)]
    return max((bits % (1 << 64) if comparison.has("u64") else abs(bits) for bits in numbers), default=0)


def _makers(instructions: Iterable[Instruction]) -> Mapping[str, Instruction]:
    """Map each register with a single definition to the defining instruction."""
    found: dict[str, Instruction | None] = {}
    for instruction in instructions:
        for name in instruction.defined:
            found[name] = None if name in found else instruction
    return {name: instruction for name, instruction in found.items() if instruction is not None}


def _step(register: Register, makers: Mapping[str, Instruction], made: Collection[str]) -> int:
    """Return the loop-invariant amount that one iteration adds to a register through copies and additions, or 0 for
    other registers. `made` are the registers that the loop defines."""
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
    """Return the source register of the result and the amount added to it, or no register for any other instruction."""
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
    """Check that the operand is a loop-invariant register."""
    return isinstance(operand, Register) and operand.name not in made and not _is_moving(operand.name)
