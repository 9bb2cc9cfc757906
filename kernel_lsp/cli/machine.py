"""Examine this machine: each tool, what it enables, and how to install it if missing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from kernel_lsp import __version__
from kernel_lsp.cli import console
from kernel_lsp.config import Settings, load_settings
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.plan import BoundLaunch, TensorArgument
from kernel_lsp.core.verdict import Built
from kernel_lsp.errors import KernelLspError
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level, support
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.ray_cluster import INSTALL
from kernel_lsp.process.self_test import self_test
from kernel_lsp.process.task_limit import holder
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.ptx.executor import REINSTALL, BufferFile, ExecutionReport, Loaded, PtxExecutor
from kernel_lsp.toolchain.nvrtc.compile import compile_cuda
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain, find_toolchain
from kernel_lsp.toolchain.tools.binaries import find_tools
from kernel_lsp.toolchain.tools.clang_tidy import clang_cuda_flags
from kernel_lsp.verify.session.start import MIN_FREE_BYTES

Status = Literal["ok", "missing", "broken"]

TASK_HOLDERS = {
    "rlimit": "RLIMIT_NPROC bounds tasks",
    "cgroup": "a pids cgroup of each child bounds tasks, of root's, too",
    "watch": "no pids cgroup can be made: tasks of root's children are counted once a second",
}
SELF_TEST_KERNEL = """
__global__ void self_test(float* out) { out[threadIdx.x] = threadIdx.x * 2.0f; }
"""
N_SELF_TEST_THREADS = 64


class Check(Noun):
    """One examined item. `is_required` means that the main job cannot run without it."""

    name: str
    status: Status
    found: str
    enables: str
    fix: str = ""
    is_required: bool = False


class DoctorReport(Noun):
    """All items, in reading order."""

    schema_version: int = SCHEMA_VERSION
    version: str = __version__
    checks: tuple[Check, ...]

    @property
    def can_optimize(self) -> bool:
        return all(check.status == "ok" for check in self.checks if check.is_required)


async def examine(settings: Settings, directory: Path, scratch: Path) -> DoctorReport:
    """Examine everything. Never raises for a missing item. `scratch` is a folder for the self-test."""
    checks = [
        Check(
            name="kernel-lsp", status="ok", found=f"{__version__}, Python {sys.version.split()[0]}", enables="itself"
        ),
        *await _interpreter(settings),
        await _guarded("CUDA compiler", "building kernels, for the check and for the operator", _compiler, settings),
        await _self_test(settings, scratch),
        await _guarded("target GPU", "estimated times", _target_gpu, settings),
        *await _sandbox(settings),
        _workspace(directory),
        _cache(settings),
        _ray(),
        *await _tools(),
        _clangd(settings, directory),
    ]
    return DoctorReport(checks=tuple(checks))


async def _guarded(name: str, enables: str, look: Callable[[Settings], Awaitable[str]], settings: Settings) -> Check:
    """Return a required item: the result of `look`, or the error that it raises."""
    try:
        return Check(name=name, status="ok", found=await look(settings), enables=enables, is_required=True)
    except KernelLspError as error:
        return Check(
            name=name, status="missing", found=error.message, enables=enables, fix=error.next_step, is_required=True
        )


async def _interpreter(settings: Settings) -> list[Check]:
    """Examine the user's Python with its torch, and the GPU that torch sees."""
    enables = "capturing your code, references, library steps"
    try:
        async with Worker(await find_python(settings.python)) as worker:
            seen = await worker.describe()
    except KernelLspError as error:
        return [
            Check(
                name="PyTorch",
                status="missing",
                found=error.message,
                enables=enables,
                fix=error.next_step,
                is_required=True,
            )
        ]
    found = f"torch {seen.torch_version} in {seen.python} (Python {seen.python_version})"
    torch = Check(name="PyTorch", status="ok", found=found, enables=enables, is_required=True)
    gpu = Check(
        name="GPU",
        status="ok" if seen.has_cuda else "missing",
        found=", ".join(seen.devices) or "none that torch can use",
        enables="running the operator on the GPU",
        fix="" if seen.has_cuda else "none is needed: kernels are checked on the CPU and times are estimated",
    )
    return [torch, gpu]


async def _compiler(settings: Settings) -> str:
    toolchain = find_toolchain(settings.cuda_directory)
    return f"NVRTC {toolchain.version} from {toolchain.origin}"


async def _target_gpu(settings: Settings) -> str:
    spec = find_gpu(settings.target_gpu)
    bandwidth = f"{spec.bandwidth / 1e12:.2f} TB/s ({spec.bandwidth_kind})"
    return f"{spec.name}: {spec.n_sms} multiprocessors, {bandwidth}"


async def _self_test(settings: Settings, scratch: Path) -> Check:
    """Compile a kernel, run it, and check its output."""
    name, enables = "PTX executor", "checking kernels without a GPU"
    fix = f"run `{REINSTALL}`, and report this if it stays"
    try:
        problem = await _run_self_test(settings, scratch)
    except KernelLspError as error:
        problem, fix = error.message, error.next_step or fix
    if problem:
        return Check(name=name, status="broken", found=problem, enables=enables, fix=fix, is_required=True)
    return Check(name=name, status="ok", found="self-test passed", enables=enables, is_required=True)


async def _run_self_test(settings: Settings, scratch: Path) -> str:
    """Return the error of the self-test; empty on success."""
    built = await compile_cuda(
        SELF_TEST_KERNEL, toolchain=find_toolchain(settings.cuda_directory), name_expressions=("self_test",)
    )
    if not isinstance(built, Built):
        return f"the self-test kernel does not build: {built.kind}"
    out = scratch / "out.bin"
    n_bytes = N_SELF_TEST_THREADS * 4
    out.write_bytes(bytes(n_bytes))
    launch = BoundLaunch(
        kernel="self_test",
        grid=(1, 1, 1),
        block=(N_SELF_TEST_THREADS, 1, 1),
        shared_bytes=0,
        arguments=(TensorArgument(tensor="out"),),
    )
    buffer = BufferFile("out", out, n_bytes, "output", f"f32[{N_SELF_TEST_THREADS}]")
    async with PtxExecutor() as executor:
        loaded = await executor.load(built.ptx, "self_test.cu")
        if not isinstance(loaded, Loaded):
            return f"the self-test kernel does not load: {loaded.message}"
        report = await executor.run([buffer], [launch], built.symbols)
    if not isinstance(report, ExecutionReport):
        return f"the self-test kernel does not run: {report.message}"
    values = memoryview(out.read_bytes()).cast("f").tolist()
    expected = [2.0 * thread for thread in range(N_SELF_TEST_THREADS)]
    return "" if values == expected else "the self-test kernel computed something else"


async def _sandbox(settings: Settings) -> list[Check]:
    """Examine the sandbox: its level, and the escape probes that succeed at it."""
    name, enables = "sandbox", "running compilers and other people's kernels without trusting them"
    try:
        level = sandbox_level(settings.sandbox)
    except KernelLspError as error:
        return [Check(name=name, status="broken", found=error.message, enables=enables, fix=error.next_step)]
    reasons = "".join(f"; {reason}" for reason in support().reasons) + f"; {TASK_HOLDERS[holder()]}"
    attempts = await self_test(level)
    escapes = [f"{a.profile}: {a.what}" for a in attempts if not a.was_denied and not a.why_open]
    opened = [a for a in attempts if a.why_open]
    for why in dict.fromkeys(a.why_open for a in opened):
        what = [a for a in opened if a.why_open == why]
        reasons += f"; left open to a {what[0].profile}: {', '.join(a.what for a in what)} ({why})"
    if not escapes:
        found = f"{level}: all of {len(attempts) - len(opened)} escape probes were denied{reasons}"
        return [Check(name=name, status="ok", found=found, enables=enables)]
    count = f"{len(escapes)} of {len(attempts)} escape probes succeeded"
    found = f"sandbox incomplete: {count} ({', '.join(escapes)}); {level}{reasons}"
    is_weak = level is not SandboxLevel.LANDLOCK_SECCOMP and level is not SandboxLevel.BWRAP
    fix = "a kernel with Landlock and seccomp, and `sandbox = auto`" if is_weak else "report this"
    return [Check(name=name, status="missing" if is_weak else "broken", found=found, enables=enables, fix=fix)]


def _workspace(directory: Path) -> Check:
    free_bytes = shutil.disk_usage(directory).free
    found, enables = f"{directory}, {free_bytes >> 30} GiB free", "keeping runs, resuming them"
    if not os.access(directory, os.W_OK):
        return Check(
            name="workspace",
            status="broken",
            found=f"{directory} is not writable",
            enables=enables,
            fix="run elsewhere",
            is_required=True,
        )
    if free_bytes < MIN_FREE_BYTES:
        return Check(name="workspace", status="broken", found=found, enables=enables, fix="free some space")
    return Check(name="workspace", status="ok", found=found, enables=enables)


def _ray() -> Check:
    enables = "candidates on the GPUs of a cluster: --device ray"
    if find_spec("ray") is None or find_spec("grpc") is None:
        return Check(name="Ray", status="missing", found="not installed", enables=enables, fix=INSTALL)
    return Check(name="Ray", status="ok", found=f"Ray {version('ray')}", enables=enables)


def _cache(settings: Settings) -> Check:
    folder = settings.cache_directory
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    is_writable = os.access(existing, os.W_OK)
    return Check(
        name="build cache",
        status="ok" if is_writable else "broken",
        found=str(folder) if is_writable else f"{existing} is not writable",
        enables="the processes of a run, instant rebuilds",
        is_required=True,
        fix="" if is_writable else "set KERNEL_LSP_CACHE_DIRECTORY to a folder that is",
    )


def _clangd(settings: Settings, directory: Path) -> Check:
    """Check that clangd, running next to this server in an editor, can read kernels."""
    enables = "clangd's completion and navigation in kernels"
    known = find_clangd_file(directory)
    if known is not None:
        return Check(name=FILE_NAME, status="ok", found=str(known), enables=enables)
    try:
        text = clangd_text(find_toolchain(settings.cuda_directory))
        fix = f"write this into {directory / FILE_NAME}:\n{text.rstrip()}"
    except KernelLspError as error:
        fix = error.next_step
    return Check(name=FILE_NAME, status="missing", found="none", enables=enables, fix=fix)


async def _tools() -> list[Check]:
    """Examine the optional tools."""
    return [
        Check(
            name=tool.name,
            status="missing" if tool.path is None else "broken" if tool.problem else "ok",
            found=tool.problem or (f"{tool.path} {tool.version}".strip() if tool.path else "not found"),
            enables=tool.purpose,
        )
        for tool in await find_tools()
    ]


FILE_NAME = ".clangd"


def clangd_text(toolchain: Toolchain) -> str:
    """The file's text."""
    arguments = clang_cuda_flags(toolchain.include_directories)
    listed = ", ".join(f'"{argument}"' for argument in arguments)
    return f"If:\n  PathMatch: .*\\.cuh?\nCompileFlags:\n  Add: [{listed}]\n"


def find_clangd_file(directory: Path) -> Path | None:
    """Return the file that clangd uses for `directory`; None when there is none."""
    return next((path for folder in (directory, *directory.parents) if (path := folder / FILE_NAME).is_file()), None)


MARKS = {"ok": ("ok     ", "green"), "missing": ("missing", "yellow"), "broken": ("broken ", "red")}

MIN_WIDTH = 40
"""Minimum characters shown of what was found, however narrow the terminal."""


@console.command
async def main(overrides: Mapping[str, Any], as_json: bool, is_verbose: bool) -> int:
    settings = load_settings(Path.cwd(), overrides)
    with console.stage("examining this machine"), tempfile.TemporaryDirectory(prefix="kernel-lsp-") as scratch:
        report = await examine(settings, Path.cwd(), Path(scratch))
    if as_json:
        console.print_json(report)
    else:
        _print(report, is_verbose)
    return console.EXIT_OK if report.can_optimize else console.EXIT_NO


def _print(report: DoctorReport, is_verbose: bool) -> None:
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        _print_check(check, width, is_verbose)
    if not is_verbose:
        console.stdout.print("details: `kernel-lsp doctor --verbose`", style="dim", markup=False)
    verdict = (
        "ready: `kernel-lsp optimize` works here" if report.can_optimize else "not ready: fix what is marked above"
    )
    console.stdout.print(verdict, style="bold green" if report.can_optimize else "bold red", markup=False)


def _print_check(check: Check, width: int, is_verbose: bool) -> None:
    """Print one line, and how to fix what the main job needs; all there is with `is_verbose`."""
    mark, style = MARKS[check.status]
    is_optional = check.status == "missing" and not check.is_required
    if is_optional:
        mark, style = "none   ", "dim"
    found = check.found if is_verbose else _first_clause(f"for {check.enables}" if is_optional else check.found, width)
    console.stdout.print(f"{mark} {check.name:<{width}}  {found}", style=style, markup=False)
    indent = f"{'':<8}{'':<{width}}  "
    if check.status != "ok" and is_verbose:
        console.stdout.print(f"{indent}for: {check.enables}", markup=False)
    if check.fix and (is_verbose or (check.status != "ok" and not is_optional)):
        console.stdout.print(f"{indent}fix: {check.fix}", markup=False)


def _first_clause(text: str, width: int) -> str:
    """Return the first clause, cut to what is left of a line beside the name."""
    left = max(MIN_WIDTH, console.stdout.width - width - len("missing   "))
    clause = text.split(";")[0].split("\n")[0]
    return clause if len(clause) <= left else f"{clause[: left - 3]}..."
