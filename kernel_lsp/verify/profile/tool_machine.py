"""The machine that profilers and sanitizers run on: this one, where they are confined, or that of a remote GPU, through
its worker (`worker/gpu/tools.py`)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernel_lsp.process.confinement import Confinement, SandboxLevel
from kernel_lsp.process.supervisor import ProcessResult, run, scrubbed_environment
from kernel_lsp.process.worker_client import WORKER_PROGRAM
from kernel_lsp.toolchain.tools import ncu as nsight
from kernel_lsp.toolchain.tools.binaries import TOOLKIT_BIN_DIRECTORIES, TOOLS, Tool, find_tools, version_in

MAX_PAGE_BYTES = 64 << 20
FIND_DEADLINE_S = 60.0
GRACE_S = 15.0
"""Seconds beyond a tool's deadline until its worker counts as lost."""
AS_THE_WORKER = "that of the GPU's worker"
"""Confinement of tools elsewhere: none behind ssh, the sandbox of that machine in a cluster."""


@dataclass(frozen=True)
class Program:
    """A program of the worker that a tool runs: its arguments, and the files that it reads."""

    arguments: tuple[str | Path, ...]
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class ToolCommand:
    """A tool's command line, which may name paths, and the report that it writes, which is brought here where
    `is_fetched`."""

    argv: Sequence[str | Path]
    report: Path | None = None
    is_fetched: bool = False


@dataclass(frozen=True)
class ToolResult:
    """A tool that ended, its confinement in words, and whether it wrote its report."""

    process: ProcessResult
    sandbox: str
    has_report: bool = False


class ToolMachine(Protocol):
    """Finds and runs tools."""

    @property
    def launcher(self) -> Sequence[str | Path]:
        """Return the command line that a worker's program begins with."""
        ...

    async def find(self, names: Sequence[str]) -> tuple[Tool, ...]:
        """Look up programs and their versions, in order."""
        ...

    async def run(
        self, commands: Sequence[ToolCommand], folder: Path, *, deadline_s: float, files: Sequence[Path] = ()
    ) -> list[ToolResult]:
        """Run tools at once in `folder`; the programs below them read `files`."""
        ...


class Asked(Protocol):
    """A worker that answers requests; `process.remote.RemoteWorker` is one."""

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]: ...


class LocalTools:
    """Tools of this machine, confined. One that writes no report runs again confined by limits alone."""

    def __init__(self, python: Path, confine: Callable[[Path], Confinement]) -> None:
        """`confine` returns the confinement of a tool that writes to a folder."""
        self.launcher: Sequence[str | Path] = (python, WORKER_PROGRAM)
        self._confine = confine
        self._held: dict[Path, tuple[Confinement, str]] = {}
        """Confinement, and its words, that a tool of each folder needed."""

    async def find(self, names: Sequence[str]) -> tuple[Tool, ...]:
        return await find_tools(names)

    async def run(
        self, commands: Sequence[ToolCommand], folder: Path, *, deadline_s: float, files: Sequence[Path] = ()
    ) -> list[ToolResult]:
        """Run them here, where all files are."""
        return await asyncio.gather(*(self._run(command, folder, deadline_s) for command in commands))

    async def _run(self, command: ToolCommand, folder: Path, deadline_s: float) -> ToolResult:
        report = command.report
        confinement, words = self._held.get(folder) or (confined := self._confine(folder), confined.level)
        result = await _run(command.argv, deadline_s, folder, confinement)
        is_least = confinement.level in (SandboxLevel.NONE, SandboxLevel.LIMITS)
        if report is not None and not (report.is_file() or result.timed_out or is_least):
            less = Confinement(SandboxLevel.LIMITS, may_start_programs=True)
            words = f"{less.level} alone: it wrote nothing under {confinement.level}"
            self._held[folder] = less, words
            result = await _run(command.argv, deadline_s, folder, less)
        return ToolResult(result, words, report is not None and report.is_file())


@dataclass
class RemoteTools:
    """Tools of a remote GPU's machine, as processes of a worker there."""

    worker: Asked
    place: str
    """Words for messages, such as ``on me@gpuhost``."""
    launcher: Sequence[str | Path] = ()
    """Known from the first `find` on."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def find(self, names: Sequence[str]) -> tuple[Tool, ...]:
        request = {"names": list(names), "folders": [str(folder) for folder in TOOLKIT_BIN_DIRECTORIES]}
        reply = await self.worker.ask("find_tools", request, deadline_s=FIND_DEADLINE_S)
        self.launcher = tuple(reply["launcher"])
        return tuple(self._tool(name, reply["tools"][name]) for name in names)

    async def run(
        self, commands: Sequence[ToolCommand], folder: Path, *, deadline_s: float, files: Sequence[Path] = ()
    ) -> list[ToolResult]:
        """Run them there: `files` travel, and so do stdout and fetched reports."""
        outs = [folder / f"stdout-{next(self._numbers)}" for _ in commands]
        fetched = [*outs, *(command.report for command in commands if command.is_fetched)]
        request = {
            "runs": [
                {
                    "argv": [_argument(each, folder) for each in command.argv],
                    "folder": str(folder),
                    "stdout": str(out),
                    "report": None if command.report is None else str(command.report),
                }
                for command, out in zip(commands, outs, strict=True)
            ],
            "environment": nsight.ENVIRONMENT,
            "deadline_s": deadline_s,
            "inputs": [{"path": str(path)} for path in files],
            "outputs": {str(number): str(path) for number, path in enumerate(fetched)},
        }
        reply = await self.worker.ask("run_tools", request, deadline_s=deadline_s + GRACE_S)
        return [
            ToolResult(_process(ended, out.read_bytes()), AS_THE_WORKER, ended["has_report"])
            for ended, out in zip(reply["runs"], outs, strict=True)
        ]

    def _tool(self, name: str, found: Mapping[str, str]) -> Tool:
        path = Path(found["path"]) if found["path"] else None
        version = version_in(found["version_text"])
        return Tool(
            name=name,
            purpose=TOOLS.get(name, ""),
            path=path,
            version=version,
            problem=found["problem"],
            place=self.place,
        )


def _process(ended: Mapping[str, Any], stdout: bytes) -> ProcessResult:
    """Return what a worker says of a tool's end."""
    return ProcessResult(
        returncode=ended["returncode"],
        stdout=stdout,
        stderr=ended["stderr"].encode(),
        timed_out=ended["timed_out"],
        truncated=False,
        elapsed_s=ended["elapsed_s"],
    )


def _argument(value: str | Path, folder: Path) -> str | dict[str, str]:
    """Return an argument as the worker takes it: paths below `folder` lie elsewhere there."""
    is_ours = isinstance(value, Path) and value.is_relative_to(folder)
    return {"file": str(value)} if is_ours else str(value)


async def _run(argv: Sequence[str | Path], deadline_s: float, folder: Path, confinement: Confinement) -> ProcessResult:
    return await run(
        argv,
        deadline_s=deadline_s,
        environment=scrubbed_environment(nsight.ENVIRONMENT),
        directory=folder,
        max_output_bytes=MAX_PAGE_BYTES,
        confinement=confinement,
    )
