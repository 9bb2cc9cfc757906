"""Batch the matrix instructions of straight-line code, so that a warp synchronises once for all of them.

A step is one instruction. Its operands go into the lane's matrix area, or are still there as the result of an earlier
step. Its results stay there until another instruction needs them. Then the lane waits, with the steps as one function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_lsp.ptx.compile.fragments import STEP_SHIFT
from kernel_lsp.ptx.compile.ir_text import IrText
from kernel_lsp.ptx.compile.warp_functions import WarpFunction, area_of, define
from kernel_lsp.ptx.run.layout import WARP_SIZE
from kernel_lsp.ptx.text.syntax import Instruction

MAX_BATCH_BYTES = 4096
"""Maximum bytes of a lane's matrix area. Each thread of a block has one, and they should stay in the cache."""
_ALIGN = 16
_CHUNKS = (16, 8, 4)


@dataclass(frozen=True)
class Held:
    """Locate a register in the area: its offset and width."""

    offset: int
    n_bits: int


@dataclass
class Step:
    """Describe a step: a function, and the offset of its area in the lane's.
    `copies` are (from, to, bytes) in the lane's area."""

    instruction: Instruction
    function: WarpFunction
    base: int
    copies: list[tuple[int, int, int]] = field(default_factory=list)

    def copy(self, source: int, target: int, n_bytes: int) -> None:
        """Copy an operand. Adjacent copies are merged."""
        if self.copies:
            from_, to, length = self.copies[-1]
            if (from_ + length, to + length) == (source, target):
                self.copies[-1] = (from_, to, length + n_bytes)
                return
        self.copies.append((source, target, n_bytes))


@dataclass
class WarpBatch:
    """Hold the steps since the last wait, and the registers whose values are in the area."""

    steps: list[Step] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    n_bytes: int = 0

    def has_room(self, n_bytes: int) -> bool:
        return self.n_bytes + n_bytes <= MAX_BATCH_BYTES

    def add(self, instruction: Instruction, function: WarpFunction, n_bytes: int) -> Step:
        """Add a step with an area of `n_bytes`."""
        step = Step(instruction, function, self.n_bytes)
        self.steps.append(step)
        self.n_bytes += -(-n_bytes // _ALIGN) * _ALIGN
        return step

    def functions(self, name: str) -> list[WarpFunction]:
        """Return the functions of the batch: the one that the warp calls first, then those it needs."""
        needed = list({step.function.name: step.function for step in self.steps}.values())
        if len(self.steps) == 1 and not self.steps[0].copies:
            return needed
        return [_batch_function(name, self.steps), *needed]


def _batch_function(name: str, steps: Sequence[Step]) -> WarpFunction:
    text = IrText()
    failed = text.label()
    codes = []
    for number, step in enumerate(steps):
        if step.copies:
            with text.loop(WARP_SIZE) as lane:
                area = area_of(text, lane)
                for copy in step.copies:
                    _copy(text, area, *copy)
        start = text.op(f"add i64 %first, {step.base}")
        code = text.op(f'call i64 @"{step.function.name}"(i64 {start}, i64 %stride)')
        if step.function.may_fail:
            here, following = text.label(), text.label()
            text.line(f"br label %{here}")
            text.begin(here)
            numbered = text.op(f"or i64 {code}, {number << STEP_SHIFT}")
            codes.append(f"[ {numbered}, %{here} ]")
            text.line(f"br i1 {text.op(f'icmp eq i64 {code}, 0')}, label %{following}, label %{failed}")
            text.begin(following)
    text.line("ret i64 0")
    if codes:
        text.begin(failed)
        text.line(f"%code = phi i64 {', '.join(codes)}")
        text.line("ret i64 %code")
    return define(name, text, 0, 0)


def _copy(text: IrText, area: str, source: int, target: int, n_bytes: int) -> None:
    done = 0
    while done < n_bytes:
        chunk = next(size for size in _CHUNKS if size <= n_bytes - done)
        value = text.op(f"load i{8 * chunk}, ptr {text.field(area, source + done)}, align 1")
        text.line(f"store i{8 * chunk} {value}, ptr {text.field(area, target + done)}, align 1")
        done += chunk
