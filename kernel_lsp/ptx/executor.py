"""Client of the executor process: start the program, send requests, and turn answers into values."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.plan import BoundLaunch, BoundStep
from kernel_lsp.core.profile import LaunchCounters
from kernel_lsp.core.verdict import Crashed, Rejected, Stalled, TimedOut, Unsupported
from kernel_lsp.errors import EnvironmentProblem, InternalError
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.profiles import executor_confinement
from kernel_lsp.process.supervisor import Answered, Conversation, Died, Overran
from kernel_lsp.ptx.run.layout import SHARED_POISON, SHARED_START, WRITTEN_BY_KERNEL, WRITTEN_SUFFIX, Interruptions

PROGRAM = "kernel_lsp.ptx.executor_process"
DEFAULT_CPU_S = 60.0
"""Default maximum CPU time of the process per request, in seconds. Unlike elapsed time, it depends little on what else
the machine does."""
WALL_PER_CPU = 10.0
"""Maximum elapsed time of a request, as a multiple of its CPU time: ten processes may share a core."""
OUT_OF_CPU = (-signal.SIGPROF, 128 + signal.SIGPROF)
"""Exit statuses of a process that exceeded its CPU time; the second is that of a launcher."""
DEFAULT_MAX_INSTRUCTIONS = 10_000_000_000
"""Default maximum instructions per run: about a minute on one core."""
NO_END = "no-end"
"""Code of the finding that a thread has reached its instruction limit."""
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
    """Facts about a loaded kernel. With global atomics, a block's results depend on others: do not sample blocks.
    `may_wait`: a loop may wait for another thread. `copies_in_bulk`: it has bulk copies."""

    symbol: str
    n_instructions: int
    uses_global_atomics: bool
    may_wait: bool
    static_shared_bytes: int
    copies_in_bulk: bool = False


@dataclass(frozen=True)
class Loaded:
    """Report a compiled module that is ready to run."""

    kernels: tuple[KernelFactsOfPtx, ...]


@dataclass(frozen=True)
class BufferFile:
    """Store a tensor as a file of `n_bytes`. Outputs and scratch are modified in place; inputs are not. `description`
    starts with the dtype: ``f32[8, 64]``. `offset_bytes` shifts the address, to test misaligned or distant pointers.
    The whole tensor must lie within 2^39 bytes either way.

    `is_initialised`: the content of an output or scratch tensor may be read, e.g. because an earlier run wrote it.
    """

    name: str
    path: Path
    n_bytes: int
    role: Literal["input", "output", "scratch"]
    description: str
    offset_bytes: int = 0
    is_initialised: bool = False


@dataclass(frozen=True)
class BlockSample:
    """Select the blocks to run of each launch: `n_blocks`, i.e. the first, the last, and random ones by `seed`.
    Named `blocks` replace them."""

    n_blocks: int
    seed: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunOptions:
    """Configure a run. Threads of a warp and warps of a block run in `thread_order`. A kernel whose result depends on
    it lacks a barrier. Sectors are counted in `n_traced_blocks` blocks of each launch."""

    sample: BlockSample | None = None
    thread_order: ThreadOrder = "forward"
    seed: int = 0
    n_traced_blocks: int = 2
    max_instructions: int = DEFAULT_MAX_INSTRUCTIONS
    max_thread_instructions: int = DEFAULT_MAX_INSTRUCTIONS
    """Maximum instructions per thread. Beyond it the run ends with a finding `NO_END`.
    Not enforced where threads may wait for others."""
    max_findings: int = 20
    cpu_s: float = DEFAULT_CPU_S
    """Maximum CPU time, in seconds. Beyond it the process is killed."""
    may_write_variables: bool = True
    """Allow writes to module variables, which keep state between launches."""
    watches_races: bool = False
    """Report races as errors: reads of another thread's write that nothing in the launch orders.
    Takes eight times the memory of outputs and scratch."""
    shared_poison: int = SHARED_POISON
    """Poison byte of shared memory before its first store."""
    shared_start: int = SHARED_START
    """Address of a block's first byte of shared memory: a multiple of 1024, because alignments depend on it."""
    resident_blocks: Mapping[str, int] = field(default_factory=dict)
    """Maximum co-resident blocks by kernel: another block starts only when one has ended.
    Other kernels have no limit."""
    keeps_lanes_apart: bool = False
    """Keep diverged lanes apart at an `activemask` until they meet at a barrier or a `.sync` instruction.
    A GPU promises no earlier reconvergence."""
    keeps_written: bool = False
    """Write a ``.written`` file for each output of a complete run, too."""
    interruptions: Interruptions = "none"
    """Yields before atomic, volatile and ordered accesses.
    Threads and blocks resume in the same or in alternating order."""


@dataclass(frozen=True)
class ExecutionReport:
    """Report a finished run. Findings of severity error mean that a GPU would have crashed or computed garbage: the
    outputs of those blocks are incomplete. Counters and `n_blocks_run` have one entry per launch.

    After a sampled launch, a later block that needs the output of blocks that were not run is excluded from
    `n_blocks_run`. Its outputs are not marked as written.
    """

    findings: tuple[Finding, ...]
    counters: tuple[LaunchCounters, ...]
    n_blocks_run: tuple[int, ...]


TRY_AGAIN = "check again when the machine is idle"
KILLED_WHILE_LOADING = (
    "the PTX executor was killed (signal 9) while it compiled the kernel; machines whose memory is full do that: "
    "close other programs, or run fewer commands side by side"
)
IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "PermissionError", "OSError")
"""Exceptions of a package that is missing, broken, or outside of what the sandbox lets the process read."""
REINSTALL = f"{sys.executable} -m pip install --force-reinstall llvmlite numpy"
LoadFailure = Rejected | Unsupported | TimedOut | Crashed
LoadOutcome = Loaded | LoadFailure
RunOutcome = ExecutionReport | Unsupported | TimedOut | Crashed
NoAnswer = TimedOut | Stalled | Crashed
"""Reasons why a request has no answer; its process has ended."""


class PtxExecutor:
    """Own a process that runs PTX on one CPU core. Use as ``async with PtxExecutor() as executor``.

    A request without an answer ends the process: `TimedOut` beyond its CPU time, `Stalled` where the machine did not
    grant that, else `Crashed`. Further runs have the same outcome; the next `load` restarts the process. The process
    may read the files below `inputs` and modify those below `folder`; by default both are the temporary folder.
    """

    def __init__(
        self, folder: Path | None = None, inputs: Path | None = None, *, sandbox: SandboxLevel | None = None
    ) -> None:
        """Set the sandbox of the process. None selects the strongest level that this machine has."""
        temporary = Path(tempfile.gettempdir())
        level = sandbox_level("auto") if sandbox is None else sandbox
        self._confinement = executor_confinement(level, readable=[inputs or temporary], writable=[folder or temporary])
        self._conversation: Conversation | None = None
        self.no_answer: NoAnswer | None = None
        """Reason why the process ended; None while it runs."""
        self._compiles_late = False
        """The loaded module's kernels may be compiled in its runs."""
        self.used_s = 0.0
        """CPU time of all answered requests, in seconds."""

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

    async def load(
        self, ptx: str, file_name: str, *, cpu_s: float = DEFAULT_CPU_S, is_quick: bool = False
    ) -> LoadOutcome:
        """Compile a PTX text. `file_name` is the `.cu` file's name in findings. `is_quick` takes a third of the time,
        for slower code: for few small runs. Rejected when one of its loops cannot end. Unsupported also when the
        process is killed from outside: nothing of the kernel runs yet. Raises EnvironmentProblem for a process that
        cannot import what it needs."""
        request = {"command": "load", "ptx": ptx, "file_name": file_name, "is_quick": is_quick}
        answer = await self._read(request, cpu_s)
        self._compiles_late = is_quick
        if not isinstance(answer, dict):
            return answer
        return Loaded(tuple(KernelFactsOfPtx(**kernel) for kernel in answer["kernels"]))

    async def inspect(self, ptx: str, file_name: str, *, cpu_s: float = DEFAULT_CPU_S) -> LoadFailure | None:
        """Look for loops that cannot end, in less than half of the time of a load; as `load` otherwise. The module that
        was loaded last stays. None where there are none."""
        answer = await self._read({"command": "inspect", "ptx": ptx, "file_name": file_name}, cpu_s)
        return None if isinstance(answer, dict) else answer

    async def _read(self, request: Mapping[str, Any], cpu_s: float) -> dict[str, Any] | LoadFailure:
        """Return the answer to a request with a PTX text, or why it is refused."""
        if not self.is_alive:
            await self._start()
        replied = await self._process.ask({**request, "cpu_s": cpu_s}, deadline_s=WALL_PER_CPU * cpu_s)
        answer = self._noted(replied, cpu_s)
        if isinstance(replied, Died) and (reason := _import_error(replied)):
            raise EnvironmentProblem(f"the PTX executor cannot start: {reason}", next_step=REINSTALL)
        if isinstance(replied, Died) and replied.returncode == -signal.SIGKILL:
            return Unsupported(message=KILLED_WHILE_LOADING)
        if not isinstance(answer, dict):
            return answer
        if "unsupported" in answer:
            return Unsupported(**answer["unsupported"])
        if "endless" in answer:
            findings = tuple(Finding(**finding) for finding in answer["endless"])
            return Rejected(message=findings[0].message, findings=findings)
        return answer

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
        if self.no_answer is not None:
            return self.no_answer
        request, deadline_s = _run_request(buffers, steps, symbols, options), WALL_PER_CPU * options.cpu_s
        replied = await self._process.ask(request, deadline_s=deadline_s)
        answer = self._noted(replied, options.cpu_s)
        if isinstance(replied, Died) and replied.returncode == -signal.SIGKILL and self._compiles_late:
            self.no_answer = Stalled(message=KILLED_WHILE_LOADING)
            return self.no_answer
        if not isinstance(answer, dict):
            return answer
        if "unsupported" in answer:
            return Unsupported(**answer["unsupported"])
        if "timed_out" in answer:
            return _timed_out(answer["timed_out"], answer["report"]["findings"], options.cpu_s)
        report = answer["report"]
        return ExecutionReport(
            findings=tuple(Finding(**finding) for finding in report["findings"]),
            counters=tuple(LaunchCounters(**counters) for counters in report["counters"]),
            n_blocks_run=tuple(report["n_blocks_run"]),
        )

    def _noted(self, replied: Answered | Died | Overran, cpu_s: float) -> dict[str, Any] | NoAnswer:
        """Return the answer to a request of at most `cpu_s` seconds of CPU time, or note why there is none."""
        answer = _reply(replied, cpu_s)
        if isinstance(answer, dict):
            self.used_s += answer["cpu_s"]
        else:
            self.no_answer = answer
        return answer

    async def _start(self) -> None:
        await self.close()
        self.no_answer = None
        self._conversation = Conversation([sys.executable, PROGRAM], confinement=self._confinement, how="module")
        await self._conversation.start()

    @property
    def _process(self) -> Conversation:
        if self._conversation is None:
            raise InternalError("the PTX executor was not started")
        return self._conversation


def written_ranges(buffer: Path) -> Iterator[tuple[int, int]]:
    """Return (start, stop) bytes of a sampled run's output that may have been written, from its ``.written`` file.
    These are the parts of the sparse file that are not holes. Inside them, test each byte for `WRITTEN_BY_KERNEL`."""
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


def _import_error(died: Died) -> str:
    """Return the last line of a process that ended while it imported its modules, before it read any request; empty
    for others."""
    lines = died.stderr.strip().splitlines()
    has_begun = any("executor_process.py" in line and line.endswith(", in main") for line in lines)
    is_import = bool(lines) and lines[-1].startswith(IMPORT_ERRORS) and not has_begun
    return lines[-1] if died.returncode == 1 and is_import else ""


def _reply(outcome: Answered | Died | Overran, cpu_s: float) -> dict[str, Any] | NoAnswer:
    match outcome:
        case Overran(deadline_s):
            return Stalled(message=f"less than {cpu_s:g} s of CPU time within {deadline_s:g} s; {TRY_AGAIN}")
        case Died(returncode) if returncode in OUT_OF_CPU:
            return TimedOut(message=f"no answer within {cpu_s:g} s of CPU time", deadline_s=cpu_s)
        case Died(returncode, stderr):
            return Crashed(message=f"the PTX executor died (exit {returncode}): {stderr.strip()[-500:]}")
        case Answered(reply) if "error" in reply:
            raise InternalError(f"the PTX executor refused a request: {reply['error']}")
        case Answered(reply):
            return reply


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
        "resident_blocks": dict(options.resident_blocks),
        "keeps_lanes_apart": options.keeps_lanes_apart,
        "keeps_written": options.keeps_written,
        "interruptions": options.interruptions,
        "cpu_s": options.cpu_s,
    }


def _step_json(step: BoundStep, symbols: Mapping[str, str]) -> dict[str, Any]:
    # Python's JSON encodes infinite scalars as Infinity, which both sides accept.
    plain = step.model_dump()
    if isinstance(step, BoundLaunch):
        plain["symbol"] = symbols.get(step.kernel, step.kernel)
    return plain
