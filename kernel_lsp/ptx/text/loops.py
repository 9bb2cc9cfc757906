"""Find the loops of a function: the blocks that a thread may run between two executions of a backward branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.ptx.text.flow import Block, defined, live_in
from kernel_lsp.ptx.text.syntax import Instruction, Symbol

ENDING_OPCODES = ("trap", "brkpt")
ENDING_FUNCTION = "__assertfail"


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
        made = {name for instruction in self.instructions() for name in defined(instruction)}
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


# --- below


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
