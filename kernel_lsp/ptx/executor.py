"""The engine's side of the executor: starts the program, asks it, and turns answers into values."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernel_lsp.core.counters import LaunchCounters
from kernel_lsp.core.finding import Finding
from kernel_lsp.core.plan import BoundLaunch, BoundStep
from kernel_lsp.core.verdict import Crashed, Rejected, TimedOut, Unsupported
from kernel_lsp.errors import InternalError
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.profiles import executor_confinement
from kernel_lsp.process.supervisor import Answered, Conversation, Died, Overran
from kernel_lsp.ptx.run.layout import (
    N_MULTIPROCESSORS,
    N_WARP_SLOTS,
    SHARED_POISON,
    SHARED_START,
    SHARED_UNIT_BYTES,
    WRITTEN_BY_KERNEL,
    WRITTEN_SUFFIX,
    Interruptions,
)

PROGRAM = "kernel_lsp.ptx.program"
DEFAULT_DEADLINE_S = 60.0
DEFAULT_MAX_INSTRUCTIONS = 10_000_000_000
"""Per run: about a minute on one core."""
NO_END = "no-end"
"""The code of the finding that a thread has run as many instructions as one may."""
__all__ = [
    "NO_END",
    "WRITTEN_BY_KERNEL",
    "WRITTEN_SUFFIX",
    "BlockSample",
    "BufferFile",
    "ExecutionReport",
    "KernelFactsOfPtx",
    "Loaded",
    "PtxExecutor",
    "RunOptions",
    "written_ranges",
]

ThreadOrder = Literal["forward", "reverse", "random"]


@dataclass(frozen=True)
class KernelFactsOfPtx:
    """What loading tells of a kernel. With global atomics a block's results depend on others: do not sample blocks.
    `may_wait` says that a loop may wait for another thread."""

    symbol: str
    n_instructions: int
    uses_global_atomics: bool
    may_wait: bool
    static_shared_bytes: int


@dataclass(frozen=True)
class Loaded:
    """The module is compiled and can be run."""

    kernels: tuple[KernelFactsOfPtx, ...]


@dataclass(frozen=True)
class BufferFile:
    """A tensor as a file of `n_bytes`. Outputs and scratch are changed in place; inputs are not. `description` starts
    with the dtype: ``f32[8, 64]``. `offset_bytes` shifts its address, to test pointers that are not well aligned or lie
    elsewhere: within 2^39 bytes either way, all of it.

    `is_initialised` says that what an output or scratch holds may be read, e.g. because an earlier run wrote it."""

    name: str
    path: Path
    n_bytes: int
    role: Literal["input", "output", "scratch"]
    description: str
    offset_bytes: int = 0
    is_initialised: bool = False


@dataclass(frozen=True)
class BlockSample:
    """Run `n_blocks` of each launch: the first, the last, and others by `seed`; or those `blocks`, by their numbers,
    where any are named."""

    n_blocks: int
    seed: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunOptions:
    """How to run. Threads of a warp and warps of a block get their turns in `thread_order`; a kernel whose result
    depends on it lacks a barrier. Sectors are counted in `n_traced_blocks` blocks of each launch."""

    sample: BlockSample | None = None
    thread_order: ThreadOrder = "forward"
    seed: int = 0
    n_traced_blocks: int = 2
    max_instructions: int = DEFAULT_MAX_INSTRUCTIONS
    max_thread_instructions: int = DEFAULT_MAX_INSTRUCTIONS
    """Of one thread: past it the run ends, with a finding `NO_END`. Not counted where threads may wait for others."""
    max_findings: int = 20
    deadline_s: float = DEFAULT_DEADLINE_S
    may_write_variables: bool = True
    """Whether variables of the module may be written: they would keep state between launches."""
    watches_races: bool = False
    """Whether a read of what another thread wrote, in a launch in which nothing orders the two, is an error. Takes
    eight times the memory of outputs and scratch."""
    shared_poison: int = SHARED_POISON
    """The byte of which shared memory is full before its first store."""
    shared_start: int = SHARED_START
    """The address of a block's first byte of shared memory: a multiple of 1024, as alignments rely on."""
    shared_unit: int = SHARED_UNIT_BYTES
    """In multiples of how many bytes shared memory is given out, as `%total_smem_size` tells it."""
    resident_blocks: Mapping[str, int] = field(default_factory=dict)
    """By kernel, how many blocks run at once, where another starts only when one has ended. No limit for others."""
    n_multiprocessors: int = N_MULTIPROCESSORS
    """What `%nsmid` says, and of how many multiprocessors `%smid` is one."""
    n_warp_slots: int = N_WARP_SLOTS
    """What `%nwarpid` says."""
    keeps_lanes_apart: bool = False
    """Whether lanes that have gone different ways are not together again at an `activemask` before they have met at a
    barrier or a `.sync` instruction. A GPU promises nothing else."""
    keeps_written: bool = False
    """Whether a complete run has a ``.written`` file for each output, too."""
    interruptions: Interruptions = "none"
    """Whether threads and blocks give way to others before atomic, volatile and ordered accesses, and go on in the same
    order or in turns from either end."""


@dataclass(frozen=True)
class ExecutionReport:
    """The steps ran. Findings of severity error mean that a GPU would have crashed or computed garbage: the outputs of
    those blocks are incomplete. Counters and `n_blocks_run` have one entry per launch.

    After a launch of which only a sample ran, a block that needs what the others would have written is left out of
    `n_blocks_run`, and its outputs are not marked as written.
    """

    findings: tuple[Finding, ...]
    counters: tuple[LaunchCounters, ...]
    n_blocks_run: tuple[int, ...]


LoadOutcome = Loaded | Rejected | Unsupported | TimedOut | Crashed
RunOutcome = ExecutionReport | Unsupported | TimedOut | Crashed


class PtxExecutor:
    """A process that runs PTX on one CPU core. Use as ``async with PtxExecutor() as executor``.

    After `TimedOut` or `Crashed` the process is restarted by the next `load`. The process may read the files below
    `inputs` and change those below `folder`; by default both are the temporary folder.
    """

    def __init__(
        self, folder: Path | None = None, inputs: Path | None = None, *, sandbox: SandboxLevel | None = None
    ) -> None:
        """`sandbox` is how the process is confined; None takes the strongest level that this machine has."""
        temporary = Path(tempfile.gettempdir())
        level = sandbox_level("auto") if sandbox is None else sandbox
        self._confinement = executor_confinement(level, readable=[inputs or temporary], writable=[folder or temporary])
        self._conversation: Conversation | None = None

    async def __aenter__(self) -> PtxExecutor:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_alive(self) -> bool:
        return self._conversation is not None and self._conversation.is_alive

    async def close(self) -> None:
        """End the process."""
        if self._conversation is not None:
            await self._conversation.close()
            self._conversation = None

    async def load(self, ptx: str, file_name: str, *, deadline_s: float = DEFAULT_DEADLINE_S) -> LoadOutcome:
        """Compile a PTX text. `file_name` is the `.cu` file's name, as findings should call it. Rejected when one of
        its loops cannot end."""
        if not self.is_alive:
            await self._start()
        answer = await self._ask({"command": "load", "ptx": ptx, "file_name": file_name}, deadline_s)
        if not isinstance(answer, dict):
            return answer
        if "unsupported" in answer:
            return Unsupported(**answer["unsupported"])
        if "endless" in answer:
            findings = tuple(Finding(**finding) for finding in answer["endless"])
            return Rejected(message=findings[0].message, findings=findings)
        return Loaded(tuple(KernelFactsOfPtx(**kernel) for kernel in answer["kernels"]))

    async def run(
        self,
        buffers: Sequence[BufferFile],
        steps: Sequence[BoundStep],
        symbols: Mapping[str, str],
        options: RunOptions | None = None,
    ) -> RunOutcome:
        """Run the steps of a bound plan. `symbols` maps the name expression of each launch to its symbol in the PTX.
        Raises InternalError when the request does not fit the loaded module."""
        options = options or RunOptions()
        answer = await self._ask(_run_request(buffers, steps, symbols, options), options.deadline_s)
        if not isinstance(answer, dict):
            return answer
        if "unsupported" in answer:
            return Unsupported(**answer["unsupported"])
        if "timed_out" in answer:
            return _timed_out(answer["timed_out"], answer["report"]["findings"], options.deadline_s)
        report = answer["report"]
        return ExecutionReport(
            findings=tuple(Finding(**finding) for finding in report["findings"]),
            counters=tuple(LaunchCounters(**counters) for counters in report["counters"]),
            n_blocks_run=tuple(report["n_blocks_run"]),
        )

    async def _start(self) -> None:
        await self.close()
        self._conversation = Conversation([sys.executable, PROGRAM], confinement=self._confinement, how="module")
        await self._conversation.start()

    async def _ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any] | TimedOut | Crashed:
        if self._conversation is None:
            raise InternalError("the PTX executor was not started")
        outcome = await self._conversation.ask(request, deadline_s=deadline_s)
        match outcome:
            case Overran():
                return TimedOut(message=f"no answer within {deadline_s:g} s", deadline_s=deadline_s)
            case Died(returncode, stderr):
                return Crashed(message=f"the PTX executor died (exit {returncode}): {stderr.strip()[-500:]}")
            case Answered(reply) if "error" in reply:
                raise InternalError(f"the PTX executor refused a request: {reply['error']}")
            case Answered(reply):
                return reply


def written_ranges(buffer: Path) -> Iterator[tuple[int, int]]:
    """(start, stop) bytes of a sampled run's output that may have been written, from its ``.written`` file: just the
    parts of the sparse file that are not holes. Inside them, look for `WRITTEN_BY_KERNEL` byte by byte."""
    with Path(f"{buffer}{WRITTEN_SUFFIX}").open("rb") as file:
        n_bytes, position = os.fstat(file.fileno()).st_size, 0
        while position < n_bytes:
            try:
                start = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError:
                # ENXIO: only a hole is left.
                return
            position = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, position


# --- below


def _timed_out(message: str, findings: Sequence[dict[str, Any]], deadline_s: float) -> TimedOut:
    found = tuple(Finding(**finding) for finding in findings)
    endless = next((finding for finding in found if finding.code == NO_END), None)
    if endless is not None:
        message = f"{endless.kernel}: {endless.message}" + (f", at line {endless.line}" if endless.line else "")
    return TimedOut(message=message, deadline_s=deadline_s, findings=found)


def _run_request(
    buffers: Sequence[BufferFile], steps: Sequence[BoundStep], symbols: Mapping[str, str], options: RunOptions
) -> dict[str, Any]:
    sample = options.sample
    return {
        "command": "run",
        "buffers": [
            {
                "name": buffer.name,
                "path": str(buffer.path),
                "n_bytes": buffer.n_bytes,
                "role": buffer.role,
                "description": buffer.description,
                "offset_bytes": buffer.offset_bytes,
                "is_initialised": buffer.is_initialised,
            }
            for buffer in buffers
        ],
        "steps": [_step_json(step, symbols) for step in steps],
        "sample_blocks": {"n": sample.n_blocks, "seed": sample.seed, "blocks": sample.blocks} if sample else None,
        "thread_order": options.thread_order,
        "seed": options.seed,
        "n_traced_blocks": options.n_traced_blocks,
        "max_instructions": options.max_instructions,
        "max_thread_instructions": options.max_thread_instructions,
        "max_findings": options.max_findings,
        "may_write_variables": options.may_write_variables,
        "watches_races": options.watches_races,
        "shared_poison": options.shared_poison,
        "shared_start": options.shared_start,
        "shared_unit": options.shared_unit,
        "resident_blocks": dict(options.resident_blocks),
        "n_multiprocessors": options.n_multiprocessors,
        "n_warp_slots": options.n_warp_slots,
        "keeps_lanes_apart": options.keeps_lanes_apart,
        "keeps_written": options.keeps_written,
        "interruptions": options.interruptions,
    }


def _step_json(step: BoundStep, symbols: Mapping[str, str]) -> dict[str, Any]:
    # Infinite scalars go through JSON as Python's Infinity, which both sides read.
    plain = step.model_dump()
    if isinstance(step, BoundLaunch):
        plain["symbol"] = symbols.get(step.kernel, step.kernel)
    return plain
