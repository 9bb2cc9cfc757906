"""Run profilers and sanitizers on the program that launches a candidate (`worker/gpu/launches.py`).

A tool that is missing, refuses the machine or exceeds its deadline is a `ToolRun` with its reason, and the profile
continues without it. Each runs confined as `profiler_confinement` defines. A tool that produces nothing there runs
again with less confinement, and its `ToolRun` says so. No host code but ours runs in them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, TensorArgument
from kernel_lsp.core.profile import KernelBound, KernelProfile, LineProfile, ToolRun
from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.confinement import Confinement, SandboxLevel
from kernel_lsp.process.profiles import linter_confinement
from kernel_lsp.process.supervisor import ProcessResult, run, scrubbed_environment
from kernel_lsp.process.worker_client import WORKER_PROGRAM
from kernel_lsp.toolchain.tools import ncu as nsight
from kernel_lsp.toolchain.tools.binaries import Tool
from kernel_lsp.toolchain.tools.clang_tidy import parse_tidy, tidy_command
from kernel_lsp.toolchain.tools.ncu import NcuLaunch, NcuLine, NcuSource, parse_raw, parse_source
from kernel_lsp.toolchain.tools.sanitizer import (
    ERROR_EXIT_CODE,
    TOOLS,
    SanitizerTool,
    parse_sanitizer,
    sanitizer_command,
)
from kernel_lsp.verify.session.pipeline import ReadyRun

PROGRAM = "profile_launches"
N_PASSES = 34
"""Approximate passes of Nsight Compute over each kernel for the metrics that we request."""
COLLECT_DEADLINE_S = 240.0
PRINT_DEADLINE_S = 60.0
SANITIZE_DEADLINE_S = 120.0
TIDY_DEADLINE_S = 60.0
MAX_PAGE_BYTES = 64 << 20

Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Holds the GPU exclusively while entered."""


@dataclass(frozen=True)
class NcuPages:
    """Nsight Compute's results; empty where it did not run."""

    run: ToolRun
    launches: tuple[NcuLaunch, ...] = ()
    sources: tuple[NcuSource, ...] = ()


def launch_program(python: Path, ready: ReadyRun, files: CaseFiles, device: int, folder: Path) -> list[str | Path]:
    """Write the request of `profile_launches` into `folder`, and return the command line that runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    request, built, codes = folder / "request.json", ready.built, list[str]()
    cubins = [base64.b64decode(cubin) for cubin in built.cubins]
    for number, content in enumerate(cubins or [built.ptx.encode()]):
        (code := folder / f"code-{number}").write_bytes(content)
        codes.append(str(code))
    asked: dict[str, Any] = {
        "device": device,
        "codes": codes,
        "symbols": ready.built.symbols,
        "operation": ready.bound.model_dump(mode="json"),
        "inputs": [tensor.entry for tensor in files.inputs],
    }
    request.write_text(json.dumps(asked), encoding="utf-8")
    return [python, WORKER_PROGRAM, PROGRAM, request]


async def run_ncu(
    tool: Tool, program: Sequence[str | Path], folder: Path, confinement: Confinement, turn: Turn = nullcontext
) -> NcuPages:
    """Profile every launch of the program. `turn` is held meanwhile: the GPU's counters serve one tool at a time."""
    absent = _absent(tool)
    if absent is not None:
        return NcuPages(absent)
    assert tool.path is not None
    started, report = time.monotonic(), folder / "report.ncu-rep"
    command = nsight.collect_command(tool.path, report, program)
    async with turn():
        collected, held = await _run_until(command, COLLECT_DEADLINE_S, folder, confinement, report)
    if not report.is_file():
        return NcuPages(_failed(tool, collected, started))
    raw, source = await asyncio.gather(
        _run(nsight.raw_command(tool.path, report), PRINT_DEADLINE_S, folder, held.confinement),
        _run(nsight.source_command(tool.path, report), PRINT_DEADLINE_S, folder, held.confinement),
    )
    launches, sources = parse_raw(_text(raw.stdout)), parse_source(_text(source.stdout))
    if not launches:
        return NcuPages(_failed(tool, raw, started))
    return NcuPages(_ran(tool, started, held.words), launches, sources)


async def run_sanitizers(
    tool: Tool, program: Sequence[str | Path], folder: Path, confinement: Confinement
) -> tuple[tuple[ToolRun, ...], tuple[Finding, ...]]:
    """Run all four tools of compute-sanitizer concurrently."""
    absent = _absent(tool)
    if absent is not None:
        return (absent,), ()
    found = await asyncio.gather(*(_sanitize(tool, name, program, folder, confinement) for name in TOOLS))
    return tuple(ran for ran, _ in found), tuple(finding for _, findings in found for finding in findings)


async def run_tidy(
    tool: Tool, kernel: Path, include_directories: Sequence[Path], level: SandboxLevel
) -> tuple[ToolRun, tuple[Finding, ...]]:
    """Lint a file of device code, which includes these headers."""
    absent = _absent(tool)
    if absent is not None:
        return absent, ()
    assert tool.path is not None
    started = time.monotonic()
    confinement = linter_confinement(level, tool.path, (kernel.parent, *include_directories))
    command = tidy_command(tool.path, kernel, include_directories)
    result = await _run(command, TIDY_DEADLINE_S, kernel.parent, confinement)
    if result.timed_out or (result.returncode and not result.stdout.strip()):  # errors in headers are written to stdout
        return _failed(tool, result, started), ()
    return _ran(tool, started, confinement.level), parse_tidy(_text(result.stdout), kernel)


async def _sanitize(
    tool: Tool, name: SanitizerTool, program: Sequence[str | Path], folder: Path, confinement: Confinement
) -> tuple[ToolRun, tuple[Finding, ...]]:
    assert tool.path is not None
    own = tool.model_copy(update={"name": f"{tool.name} {name}"})
    started, report = time.monotonic(), folder / f"{name}.xml"
    command = sanitizer_command(tool.path, name, report, program)
    result, held = await _run_until(command, SANITIZE_DEADLINE_S, folder, confinement, report)
    findings = None if result.timed_out else _reported(name, report)
    if findings is None or (result.returncode not in (0, ERROR_EXIT_CODE) and not findings):
        return _failed(own, result, started), ()
    return _ran(own, started, held.words), findings


def _reported(name: SanitizerTool, report: Path) -> tuple[Finding, ...] | None:
    """Return the findings of a sanitizer's report; None where there is none that can be read."""
    if not report.is_file():
        return None
    try:
        return parse_sanitizer(name, report.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return None


@dataclass(frozen=True)
class _Held:
    """The confinement that a tool finally ran in."""

    confinement: Confinement
    words: str


async def _run_until(
    argv: Sequence[str | Path], deadline_s: float, folder: Path, confinement: Confinement, report: Path
) -> tuple[ProcessResult, _Held]:
    """Run a tool that writes a report. Where it ended without one, run it again confined by limits alone."""
    result = await _run(argv, deadline_s, folder, confinement)
    is_least = confinement.level in (SandboxLevel.NONE, SandboxLevel.LIMITS)
    if report.is_file() or result.timed_out or is_least:
        return result, _Held(confinement, confinement.level)
    less = Confinement(SandboxLevel.LIMITS, may_start_programs=True)
    again = await _run(argv, deadline_s, folder, less)
    return again, _Held(less, f"{less.level} alone: it wrote nothing under {confinement.level}")


async def _run(argv: Sequence[str | Path], deadline_s: float, folder: Path, confinement: Confinement) -> ProcessResult:
    return await run(
        argv,
        deadline_s=deadline_s,
        environment=scrubbed_environment(nsight.ENVIRONMENT),
        directory=folder,
        max_output_bytes=MAX_PAGE_BYTES,
        confinement=confinement,
    )


def _absent(tool: Tool) -> ToolRun | None:
    if tool.path is None:
        return ToolRun(tool=tool.name, status="absent", reason=f"{tool.name} is not installed")
    if tool.problem:
        return ToolRun(tool=tool.name, status="failed", reason=tool.problem)
    return None


def _ran(tool: Tool, started: float, sandbox: str) -> ToolRun:
    elapsed_s = time.monotonic() - started
    return ToolRun(tool=tool.name, status="ran", version=tool.version, sandbox=sandbox, elapsed_s=elapsed_s)


def _failed(tool: Tool, result: ProcessResult, started: float) -> ToolRun:
    elapsed_s = time.monotonic() - started
    if result.timed_out:
        reason = f"no end within {result.elapsed_s:.0f} s"
    else:
        said = [line.strip() for line in (_text(result.stderr) + _text(result.stdout)).splitlines() if line.strip()]
        errors = [line for line in said if "ERROR" in line or "rror:" in line] or said
        reason = errors[-1] if errors else f"it ended with {result.returncode}"
    return ToolRun(tool=tool.name, status="failed", version=tool.version, reason=reason, elapsed_s=elapsed_s)


def _text(output: bytes) -> str:
    return output.decode(errors="replace")


BUSY = 0.6
"""Share of a peak rate below which Nsight Compute itself diagnoses latency (its rule SOLBottleneck)."""
LAUNCH_US = 4.0
"""Duration below which a kernel takes about as long as an empty one (2.2 us) and its first access to memory."""
STALL_WORDS = {
    "long_scoreboard": "global memory",
    "long_sb": "global memory",
    "short_scoreboard": "shared memory or a special function",
    "short_sb": "shared memory or a special function",
    "mio_throttle": "the queue to shared memory",
    "mio": "the queue to shared memory",
    "lg_throttle": "the queue to global memory",
    "lg": "the queue to global memory",
    "barrier": "other warps at a barrier",
    "drain": "its stores to be written",
    "math_pipe_throttle": "the arithmetic pipes",
    "math": "the arithmetic pipes",
    "wait": "the instruction before",
    "membar": "a fence",
    "branch_resolving": "a branch",
    "no_instruction": "instructions",
    "no_inst": "instructions",
    "imc_miss": "constants",
    "imc": "constants",
    "gmma": "the tensor cores",
    "tex_throttle": "the texture queue",
    "tex": "the texture queue",
}
NOT_WAITING = frozenset(("selected", "not_selected", "dispatch_stall", "dispatch", "misc", "sleeping", "sleep"))
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "threads": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}


def measured_kernels(
    bound: BoundOperation,
    launches: Sequence[NcuLaunch],
    sources: Sequence[NcuSource],
    facts: Sequence[KernelFacts],
    symbols: Mapping[str, str],
    file_name: str,
) -> tuple[KernelProfile, ...]:
    """Return one profile per launch that both the plan and the report have, in order. `share` is of these launches'
    time."""
    steps = [launch for launch in bound.launches if launch.n_blocks]
    total_us = sum(launch.metric("gpu__time_duration.sum") for launch in launches) or 1.0
    by_symbol = {fact.symbol: fact for fact in facts}
    return tuple(
        _kernel(
            bound, step, launch, _lines(step.kernel, source, file_name), by_symbol.get(symbols.get(step.kernel, ""))
        ).model_copy(update={"share": launch.metric("gpu__time_duration.sum") / total_us})
        for step, launch, source in zip(steps, launches, [*sources, *[NcuSource("", ())] * len(steps)], strict=False)
    )


def _kernel(
    bound: BoundOperation,
    step: BoundLaunch,
    launch: NcuLaunch,
    lines: tuple[LineProfile, ...],
    facts: KernelFacts | None,
) -> KernelProfile:
    limits = {name: launch.metric(metric) for name, metric in LIMITS.items() if launch.metric(metric)}
    return KernelProfile(
        kernel=step.kernel,
        operation=bound.name,
        share=1.0,
        bound=_bound(launch),
        launch_line=step.line,
        time_us=launch.metric("gpu__time_duration.sum"),
        grid=step.grid,
        block=step.block,
        n_registers=round(launch.metric("launch__registers_per_thread")),
        spill_bytes=facts.spill_store_bytes + facts.spill_load_bytes if facts is not None else 0,
        shared_bytes=round(
            launch.metric("launch__shared_mem_per_block_static") + launch.metric("launch__shared_mem_per_block_dynamic")
        ),
        occupancy=launch.metric("sm__maximum_warps_per_active_cycle_pct") / 100,
        occupancy_limit=min(limits, key=lambda name: limits[name]) if limits else "",
        achieved_occupancy=launch.metric("sm__warps_active.avg.pct_of_peak_sustained_active") / 100,
        n_waves=launch.metric("launch__waves_per_multiprocessor"),
        bytes_moved=round(launch.metric("dram__bytes_read.sum") + launch.metric("dram__bytes_write.sum")),
        compulsory_bytes=compulsory_bytes(bound, step),
        device_memory_busy=_percent(launch, "gpu__dram_throughput"),
        l2_busy=_percent(launch, "lts__throughput"),
        l1_busy=_percent(launch, "l1tex__throughput"),
        compute_busy=_percent(launch, "sm__throughput"),
        stalls={_words(name): share for name, share in launch.stalls.items() if name not in NOT_WAITING},
        lines=lines,
    )


def compulsory_bytes(bound: BoundOperation, step: BoundLaunch) -> int:
    """Return the bytes of every tensor that the launch is given, each once."""
    names = dict.fromkeys(argument.tensor for argument in step.arguments if isinstance(argument, TensorArgument))
    return sum(bound.tensor(name).n_bytes for name in names)


def _percent(launch: NcuLaunch, unit: str) -> float:
    return launch.metric(f"{unit}.avg.pct_of_peak_sustained_elapsed") / 100


def _bound(launch: NcuLaunch) -> KernelBound:
    busy: dict[KernelBound, float] = {
        "memory": _percent(launch, "gpu__dram_throughput"),
        "cache": max(_percent(launch, "lts__throughput"), _percent(launch, "l1tex__throughput")),
        "compute": _percent(launch, "sm__throughput"),
    }
    busiest = max(busy, key=lambda name: busy[name])
    if busy[busiest] >= BUSY:
        return busiest
    return "launch" if launch.metric("gpu__time_duration.sum") < LAUNCH_US else "latency"


def _lines(kernel: str, source: NcuSource, file_name: str) -> tuple[LineProfile, ...]:
    """Return the lines of the `.cu` file itself. Lines inlined from headers are left out: the user cannot change
    them."""
    own = [line for line in source.lines if line.file.rsplit("/", 1)[-1] == file_name]
    total = sum(line.n_samples for line in own) or 1
    return tuple(_line(kernel, line, total) for line in own)


def _line(kernel: str, line: NcuLine, total: int) -> LineProfile:
    waits = {name: n for name, n in line.stalls.items() if name not in NOT_WAITING}
    most = max(waits, key=lambda name: waits[name], default="")
    return LineProfile(
        line=line.line,
        kernel=kernel,
        share=line.n_samples / total,
        n_instructions=line.n_instructions,
        stall=_words(most) if most else "",
        stall_share=waits[most] / max(1, line.n_samples) if most else 0.0,
        n_sectors=line.n_sectors,
        n_sectors_needed=line.n_sectors_needed,
        n_wavefronts=line.n_wavefronts,
        n_wavefronts_needed=line.n_wavefronts_needed,
    )


def _words(stall: str) -> str:
    return STALL_WORDS.get(stall, stall.replace("_", " "))
