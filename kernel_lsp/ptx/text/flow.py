"""Build the control-flow graph of a kernel: basic blocks and register liveness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernel_lsp.ptx.text.syntax import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Operand,
    Register,
    Symbol,
    UnsupportedPtxError,
)

Place = tuple[Operand, int]
"""Canonical address: a register or a symbol, and an offset in bytes."""
ENDING_OPCODES = ("trap", "brkpt")
ENDING_FUNCTION = "__assertfail"


@dataclass
class Block:
    """Hold a basic block. `targets` are block indices: none at the end of the thread, one for a jump, two for `guard`
    taken and not taken, several for a `selector`."""

    index: int
    instructions: list[Instruction] = field(default_factory=list)
    targets: tuple[int, ...] = ()
    guard: Guard | None = None
    selector: Register | None = None
    terminator: Instruction | None = None
    live_out: frozenset[str] = frozenset()

    @property
    def n_instructions(self) -> int:
        return len(self.instructions) + (self.terminator is not None)


def build_blocks(kernel: Function) -> list[Block]:
    """Return the basic blocks in program order, with `live_out` filled in. A guarded instruction that is not a branch
    is a block of its own, so that execution counts are exact."""
    builder = _Builder(kernel)
    builder.run()
    _fill_liveness(builder.blocks)
    return builder.blocks


def live_after(block: Block) -> list[frozenset[str]]:
    """Return, for each instruction of the block, the registers that are live after it."""
    live = set(block.live_out) | _terminator_uses(block)
    result = []
    for instruction in reversed(block.instructions):
        result.append(frozenset(live))
        live -= set(instruction.defined)
        live |= set(instruction.used)
    return result[::-1]


def live_in(block: Block) -> frozenset[str]:
    """Return the registers that are live at the start of the block."""
    live = set(block.live_out) | _terminator_uses(block)
    for instruction in reversed(block.instructions):
        live -= set(instruction.defined)
        live |= set(instruction.used)
    return frozenset(live)


class _Builder:
    def __init__(self, kernel: Function) -> None:
        self.kernel = kernel
        self.blocks: list[Block] = []
        self.labels: dict[str, int] = {}
        self.pending: list[tuple[Block, tuple[str | int, ...]]] = []

    def run(self) -> None:
        block = self.new_block()
        for statement in self.kernel.statements:
            if isinstance(statement, Label):
                if block.instructions or block.index == 0:
                    block = self.fall_into_new(block)
                if statement.name in self.labels:
                    raise UnsupportedPtxError(f"the label '{statement.name}' twice in one function")
                self.labels[statement.name] = block.index
            elif statement.guard is not None and statement.opcode not in ("bra", "brx"):
                block = self.guarded(block, statement)
            elif statement.opcode in ("bra", "brx", "ret", "exit"):
                self.end(block, statement)
                block = self.new_block()
            else:
                block.instructions.append(statement)
        for block, names in self.pending:
            block.targets = tuple(self.target(name, block) for name in names)

    def new_block(self) -> Block:
        block = Block(len(self.blocks))
        self.blocks.append(block)
        return block

    def fall_into_new(self, block: Block) -> Block:
        following = self.new_block()
        self.pending.append((block, (following.index,)))
        return following

    def guarded(self, block: Block, instruction: Instruction) -> Block:
        body, following = self.new_block(), self.new_block()
        block.guard = instruction.guard
        self.pending.append((block, (body.index, following.index)))
        if instruction.opcode in ("ret", "exit"):
            body.terminator = instruction
        else:
            body.instructions.append(instruction)
            self.pending.append((body, (following.index,)))
        return following

    def end(self, block: Block, instruction: Instruction) -> None:
        block.terminator = instruction
        targets: tuple[str | int, ...]
        if instruction.opcode in ("ret", "exit"):
            targets = ()
        elif instruction.opcode == "brx":
            selector, table = instruction.operands
            if not isinstance(selector, Register) or not isinstance(table, Symbol):
                raise UnsupportedPtxError("an indexed branch without a table", instruction)
            block.selector = selector
            targets = self.kernel.branch_tables[table.name]
        else:
            label = instruction.operands[0]
            if not isinstance(label, Symbol):
                raise UnsupportedPtxError("a branch that is not to a label", instruction)
            targets = (label.name,)
        if instruction.guard is not None:
            if instruction.opcode == "brx":
                raise UnsupportedPtxError("a guarded indexed branch", instruction)
            block.guard = instruction.guard
            targets = (*targets, block.index + 1)
        self.pending.append((block, targets))

    def target(self, name: str | int, block: Block) -> int:
        if isinstance(name, int):
            return name
        if name not in self.labels:
            raise UnsupportedPtxError(f"a branch to '{name}', which is not in this function", block.terminator)
        return self.labels[name]


def _terminator_uses(block: Block) -> set[str]:
    uses = {block.guard.register.name} if block.guard else set()
    return uses | ({block.selector.name} if block.selector else set())


def _fill_liveness(blocks: list[Block]) -> None:
    """Solve liveness as backward data flow, to a fixed point."""
    uses, kills = [], []
    for block in blocks:
        read: set[str] = set()
        written: set[str] = set()
        for instruction in block.instructions:
            read |= set(instruction.used) - written
            written |= set(instruction.defined)
        uses.append(read | (_terminator_uses(block) - written))
        kills.append(written)
    live_in: list[set[str]] = [set() for _ in blocks]
    live_out: list[set[str]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out = set().union(*(live_in[target] for target in block.targets))
            entering = uses[block.index] | (out - kills[block.index])
            if out != live_out[block.index] or entering != live_in[block.index]:
                live_out[block.index], live_in[block.index], changed = out, entering, True
    for block in blocks:
        block.live_out = frozenset(live_out[block.index])


def users_of(blocks: Sequence[Block]) -> dict[str, list[Instruction]]:
    """Map each register to the instructions that read it."""
    users: dict[str, list[Instruction]] = {}
    for block in blocks:
        for instruction in block.instructions:
            for name in instruction.used:
                users.setdefault(name, []).append(instruction)
    return users


def address_of(one: Instruction, origins: dict[str, Instruction | None]) -> Place:
    """Return the address of an access, resolved through copies and constant offsets.
    Equal results are the same address."""
    address = next(operand for operand in one.operands if isinstance(operand, Address))
    base: Operand = address.base
    offset = address.offset
    while isinstance(base, Register) and (origin := origins.get(base.name)) is not None:
        source, *rest = origin.operands[1:]
        if origin.opcode == "add" and rest and isinstance(rest[0], Immediate):
            offset += rest[0].bits
        elif origin.opcode not in ("mov", "cvta"):
            break
        base = source
    if isinstance(base, Symbol):
        return Symbol(base.name), offset + base.offset
    return base, offset


def origins_of(blocks: Sequence[Block]) -> dict[str, Instruction | None]:
    """Map each register to the instruction that defines it; None where several do."""
    origins: dict[str, Instruction | None] = {}
    for block in blocks:
        for one in block.instructions:
            for name in one.defined:
                origins[name] = None if name in origins else one
    return origins


STRONG_MODIFIERS = ("volatile", "acquire", "relaxed", "acq_rel", "release", "seq_cst", "mmio")
"""Modifiers of accesses through which threads may communicate."""
ACQUIRING_MODIFIERS = ("acquire", "acq_rel", "seq_cst")
RELEASING_MODIFIERS = ("release", "acq_rel", "seq_cst", "sc")
PAST_L1_MODIFIERS = ("cg", "cv")
"""Modifiers of loads that bypass the L1 cache."""
SHARED_MODIFIERS = ("shared", "shared__cta")


@dataclass(frozen=True)
class Loop:
    """Hold a loop. From each of its `blocks`, `header` can be reached again.
    `exits` are the blocks that may leave, and `outside` their targets outside."""

    header: Block
    blocks: tuple[Block, ...]
    exits: tuple[Block, ...]
    outside: tuple[Block, ...]

    def instructions(self) -> Iterator[Instruction]:
        """Return the instructions of the loop, except branches."""
        return (instruction for block in self.blocks for instruction in block.instructions)

    def carried(self) -> frozenset[str]:
        """Return the loop-carried registers: their value in one iteration may come from the previous one."""
        made = {name for instruction in self.instructions() for name in instruction.defined}
        return frozenset(live_in(self.header)) & made


def loops_of(blocks: Sequence[Block]) -> Iterator[Loop]:
    """Return one loop for each reachable backward branch, and one for all backward branches to the same block."""
    targets = [() if _ends_the_thread(block) else block.targets for block in blocks]
    sources: list[list[int]] = [[] for _ in blocks]
    for index, nexts in enumerate(targets):
        for following in nexts:
            sources[following].append(index)
    latches: dict[int, list[int]] = {}
    for latch, header in _backward_edges(targets):
        latches.setdefault(header, []).append(latch)
    for header, found in latches.items():
        bodies = [_body(header, latch, sources) for latch in found]
        together = [frozenset().union(*bodies)] if len(bodies) > 1 else []
        for body in dict.fromkeys((*bodies, *together)):
            yield _loop(header, body, blocks, targets)


def _ends_the_thread(block: Block) -> bool:
    return any(
        instruction.opcode in ENDING_OPCODES
        or any(isinstance(operand, Symbol) and operand.name == ENDING_FUNCTION for operand in instruction.operands)
        for instruction in block.instructions
    )


def _backward_edges(targets: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Return (from, to) of each edge to a block on the depth-first path from the first block to its source."""
    on_the_way, seen = {0}, {0}
    way = [(0, iter(targets[0]))] if targets else []
    while way:
        index, rest = way[-1]
        following = next(rest, None)
        if following is None:
            on_the_way.remove(index)
            way.pop()
        elif following in on_the_way:
            yield index, following
        elif following not in seen:
            seen.add(following)
            on_the_way.add(following)
            way.append((following, iter(targets[following])))


def _body(header: int, latch: int, sources: Sequence[Sequence[int]]) -> frozenset[int]:
    """Return the blocks from which the latch is reachable without passing the header."""
    body, to_do = {header, latch}, [latch]
    while to_do:
        index = to_do.pop()
        if index != header:
            new = [source for source in sources[index] if source not in body]
            body.update(new)
            to_do += new
    return frozenset(body)


def _loop(header: int, body: frozenset[int], blocks: Sequence[Block], targets: Sequence[Sequence[int]]) -> Loop:
    inside = sorted(body)
    leaving = {index: [target for target in targets[index] if target not in body] for index in inside}
    return Loop(
        header=blocks[header],
        blocks=tuple(blocks[index] for index in inside),
        exits=tuple(blocks[index] for index in inside if leaving[index]),
        outside=tuple(blocks[target] for target in sorted({target for found in leaving.values() for target in found})),
    )
