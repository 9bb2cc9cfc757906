"""Run profilers and sanitizers on the program that launches a candidate (`worker/gpu/launches.py`).

A tool that is missing, refuses the machine or exceeds its deadline is a `ToolRun` with its reason, and the profile
continues without it. Where they run, and how they are confined there, is `tool_machine`'s. No host code but ours runs
in them.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.profile import ToolRun
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.profiles import linter_confinement
from kernel_lsp.process.supervisor import ProcessResult, run, scrubbed_environment
from kernel_lsp.toolchain.tools import ncu as nsight
from kernel_lsp.toolchain.tools.binaries import Tool
from kernel_lsp.toolchain.tools.clang_tidy import parse_tidy, tidy_command
from kernel_lsp.toolchain.tools.ncu import NcuLaunch, NcuSource, parse_raw, parse_source
from kernel_lsp.toolchain.tools.sanitizer import (
    ERROR_EXIT_CODE,
    TOOLS,
    SanitizerTool,
    parse_sanitizer,
    sanitizer_command,
)
from kernel_lsp.verify.profile.tool_machine import MAX_PAGE_BYTES, Program, ToolCommand, ToolMachine, ToolResult
from kernel_lsp.verify.session.pipeline import ReadyRun

PROGRAM = "profile_launches"
N_PASSES = 34
"""Approximate passes of Nsight Compute over each kernel for the metrics that we request."""
COLLECT_DEADLINE_S = 240.0
PRINT_DEADLINE_S = 60.0
SANITIZE_DEADLINE_S = 120.0
TIDY_DEADLINE_S = 60.0

Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Holds the GPU exclusively while entered."""


@dataclass(frozen=True)
class NcuPages:
    """Nsight Compute's results; empty where it did not run."""

    run: ToolRun
    launches: tuple[NcuLaunch, ...] = ()
    sources: tuple[NcuSource, ...] = ()


def launch_program(ready: ReadyRun, files: CaseFiles, device: int, folder: Path) -> Program:
    """Write the request of `profile_launches` into `folder`, and return the program that runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    request, built, codes = folder / "request.json", ready.built, list[Path]()
    cubins = [base64.b64decode(cubin) for cubin in built.cubins]
    for number, content in enumerate(cubins or [built.ptx.encode()]):
        (code := folder / f"code-{number}").write_bytes(content)
        codes.append(code)
    asked: dict[str, Any] = {
        "device": device,
        "codes": [str(code) for code in codes],
        "symbols": ready.built.symbols,
        "operation": ready.bound.model_dump(mode="json"),
        "inputs": [tensor.entry for tensor in files.inputs],
    }
    request.write_text(json.dumps(asked), encoding="utf-8")
    return Program((PROGRAM, request), (request, *codes, *(tensor.path for tensor in files.inputs)))


async def run_ncu(
    tool: Tool, program: Program, folder: Path, machine: ToolMachine, turn: Turn = nullcontext
) -> NcuPages:
    """Profile every launch of the program. `turn` is held meanwhile: the GPU's counters serve one tool at a time."""
    absent = _absent(tool)
    if absent is not None:
        return NcuPages(absent)
    assert tool.path is not None
    started, report = time.monotonic(), folder / "report.ncu-rep"
    command = nsight.collect_command(tool.path, report, [*machine.launcher, *program.arguments])
    collecting = ToolCommand(command, report)
    async with turn():
        (collected,) = await machine.run([collecting], folder, deadline_s=COLLECT_DEADLINE_S, files=program.files)
    if not collected.has_report:
        return NcuPages(_failed(tool, collected.process, started))
    printing = [ToolCommand(page(tool.path, report)) for page in (nsight.raw_command, nsight.source_command)]
    raw, source = await machine.run(printing, folder, deadline_s=PRINT_DEADLINE_S)
    launches, sources = parse_raw(_text(raw.process.stdout)), parse_source(_text(source.process.stdout))
    if not launches:
        return NcuPages(_failed(tool, raw.process, started))
    return NcuPages(_ran(tool, started, collected.sandbox), launches, sources)


async def run_sanitizers(
    tool: Tool, program: Program, folder: Path, machine: ToolMachine
) -> tuple[tuple[ToolRun, ...], tuple[Finding, ...]]:
    """Run all four tools of compute-sanitizer concurrently."""
    absent = _absent(tool)
    if absent is not None:
        return (absent,), ()
    assert tool.path is not None
    started, reports = time.monotonic(), {name: folder / f"{name}.xml" for name in TOOLS}
    launched = [*machine.launcher, *program.arguments]
    commands = [
        ToolCommand(sanitizer_command(tool.path, name, report, launched), report, is_fetched=True)
        for name, report in reports.items()
    ]
    ended = await machine.run(commands, folder, deadline_s=SANITIZE_DEADLINE_S, files=program.files)
    found = [_sanitized(tool, name, reports[name], result, started) for name, result in zip(TOOLS, ended, strict=True)]
    return tuple(ran for ran, _ in found), tuple(finding for _, findings in found for finding in findings)


async def run_tidy(
    tool: Tool, kernel: Path, include_directories: Sequence[Path], level: SandboxLevel
) -> tuple[ToolRun, tuple[Finding, ...]]:
    """Lint a file of device code, which includes these headers, on this machine."""
    absent = _absent(tool)
    if absent is not None:
        return absent, ()
    assert tool.path is not None
    started = time.monotonic()
    confinement = linter_confinement(level, tool.path, (kernel.parent, *include_directories))
    result = await run(
        tidy_command(tool.path, kernel, include_directories),
        deadline_s=TIDY_DEADLINE_S,
        environment=scrubbed_environment(nsight.ENVIRONMENT),
        directory=kernel.parent,
        max_output_bytes=MAX_PAGE_BYTES,
        confinement=confinement,
    )
    if result.timed_out or (result.returncode and not result.stdout.strip()):  # errors in headers are written to stdout
        return _failed(tool, result, started), ()
    return _ran(tool, started, confinement.level), parse_tidy(_text(result.stdout), kernel)


def _sanitized(
    tool: Tool, name: SanitizerTool, report: Path, ran: ToolResult, started: float
) -> tuple[ToolRun, tuple[Finding, ...]]:
    own, result = tool.model_copy(update={"name": f"{tool.name} {name}"}), ran.process
    findings = None if result.timed_out else _reported(name, report)
    if findings is None or (result.returncode not in (0, ERROR_EXIT_CODE) and not findings):
        return _failed(own, result, started), ()
    return _ran(own, started, ran.sandbox).model_copy(update={"elapsed_s": result.elapsed_s}), findings


def _reported(name: SanitizerTool, report: Path) -> tuple[Finding, ...] | None:
    """Return the findings of a sanitizer's report; None where there is none that can be read."""
    if not report.is_file():
        return None
    try:
        return parse_sanitizer(name, report.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return None


def _absent(tool: Tool) -> ToolRun | None:
    if tool.path is None:
        return ToolRun(tool=tool.name, status="absent", reason=f"{tool.name} is not installed {tool.place}".rstrip())
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
