"""Compile a `.cu` file that has no launch plan: compiler errors, ptxas facts and static findings, but no verdict."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from tree_sitter import Node

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import BuildFailed, Built, TimedOut, Unsupported, Verdict
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.gpu.specs import GpuSpec, find_gpu
from kernel_lsp.plan.draft import draft_plan
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.interpreter import find_python, site_packages
from kernel_lsp.process.profiles import foreign_confinement
from kernel_lsp.process.supervisor import run, scrubbed_environment
from kernel_lsp.rules.cuda.checking import check
from kernel_lsp.rules.finding import SOURCE
from kernel_lsp.source.cuda import kernel_signatures, parsed_source
from kernel_lsp.toolchain.extension.tools import ExtensionTools, find_extension_tools
from kernel_lsp.toolchain.nvrtc.cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.diagnostics import compiler_findings, kernel_facts
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain

NO_PLAN = "no launch plan, so nothing was run: add one at the top of the file"
NO_TASK = "no task to check this kernel against: give --task model.py::symbol"
PLAN_PAGE = "docs/kernel-format.md describes launch plans"
MAX_LOG_BYTES = 1 << 20
NVCC_OPTIONS = ("-cubin", "-std=c++17", "-lineinfo", "-Xptxas", "-v")
_LAUNCHED = re.compile(r"\b([A-Za-z_][\w:]*\s*<[^;<>()]*>)\s*<<<")
_HOST_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?:\w+|cuda_runtime(?:_api)?\.h|sys/\w+\.h|unistd\.h)>")
_DEVICE_HEADERS = re.compile(r"<(?:stdint|cstdint|float|cfloat|limits|climits|math|cmath|type_traits|utility|array)")
_ON_DEVICE = re.compile(r"\b(?:__global__|__device__|constexpr)\b")
_HOST_ERROR = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<text>.*)$", re.M)


async def check_plain(kernel: Path, text: str, settings: Settings) -> Verdict:
    """Compile with nvcc where it is found, else the device code with NVRTC. Raises EnvironmentProblem, SettingError."""
    gpu, level = find_gpu(settings.target_gpu), sandbox_level(settings.sandbox)
    tools = await _nvcc()
    if tools is not None:
        device, built = "nvcc", await _with_nvcc(kernel, text, tools, gpu, level, settings.compile_deadline_s)
    else:
        device, built = "NVRTC", await _with_nvrtc(kernel.name, text, gpu, level, settings)
    if isinstance(built, BuildFailed | TimedOut):
        return _verdict(text, device, built)
    return _verdict(text, device, Unsupported(message=NO_PLAN), built, _plan_notes(text))


def check_without_task(text: str, kind: str, file_name: str) -> Verdict:
    """Return what can be said of a kernel with host code of its own when no task is named."""
    if file_name.endswith(".py"):
        text = ""  # the rules read CUDA
    return _verdict(text, "static rules", Unsupported(message=NO_TASK)).model_copy(update={"foreign": kind})


def static_findings(text: str) -> tuple[Finding, ...]:
    """Return what the CUDA rules find, as findings of a verdict."""
    return tuple(
        Finding(
            code=found.code,
            severity=found.severity,
            message=found.message,
            source=SOURCE,
            line=found.range.start_line + 1,
            column=found.range.start_column + 1,
            n_occurrences=1 + len(found.related),
        )
        for found in check(text)
    )


# --- below


def _verdict(
    text: str,
    device: str,
    outcome: BuildFailed | TimedOut | Unsupported,
    built: Built | None = None,
    notes: tuple[str, ...] = (),
) -> Verdict:
    candidate = Candidate(text=text, origin=Origin(proposer="user", description="a file without a launch plan"))
    return Verdict(
        candidate_id=candidate.id,
        device=device,
        outcome=outcome,
        findings=((*built.warnings,) if built is not None else ()) + static_findings(text),
        kernels=built.kernels if built is not None else (),
        notes=notes,
    )


def _plan_notes(text: str) -> tuple[str, ...]:
    drafted = draft_plan(kernel_signatures(text))
    lines = ("to have it checked and timed, complete this draft and put it at the top:", *drafted.splitlines())
    return (*(lines if drafted else ()), PLAN_PAGE)


async def _nvcc() -> ExtensionTools | None:
    try:
        tools = await find_extension_tools()
    except EnvironmentProblem:
        return None  # nvcc preprocesses with the C++ compiler
    return tools if tools.nvcc is not None else None


async def _with_nvcc(
    kernel: Path, text: str, tools: ExtensionTools, gpu: GpuSpec, level: SandboxLevel, deadline_s: float
) -> Built | BuildFailed | TimedOut:
    folder = kernel.absolute().parent
    architecture = gpu.architecture.name
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-nvcc-") as made:
        scratch = Path(made)
        (scratch / kernel.name).write_text(text, encoding="utf-8")
        result = await run(
            [tools.nvcc or "nvcc", *NVCC_OPTIONS, f"-arch={architecture}", f"-I{folder}", kernel.name, "-o", "o.cubin"],
            deadline_s=deadline_s,
            directory=scratch,
            environment=scrubbed_environment({"LC_ALL": "C"}),
            max_output_bytes=MAX_LOG_BYTES,
            confinement=foreign_confinement(
                level, Path(sys.executable), readable=(folder, *tools.roots), scratch=scratch, may_start_programs=True
            ),
        )
    if result.timed_out:
        return TimedOut(message=f"nvcc exceeded its {deadline_s:g} s", deadline_s=deadline_s)
    log = (result.stdout + result.stderr).decode(errors="replace")
    findings = _as_nvcc((*compiler_findings(log, text, kernel.name), *_host_errors(log)))
    if result.returncode != 0:
        return BuildFailed(findings=findings or (_unexplained(log),), log=log)
    kernels = kernel_facts(log, {})
    return Built(architecture=architecture, ptx="", cubin="", symbols={}, kernels=kernels, warnings=findings)


def _host_errors(log: str) -> tuple[Finding, ...]:
    """Return the errors of the host's preprocessor and compiler: a missing header is one."""
    return tuple(
        Finding(
            code="compile-error",
            severity=Severity.ERROR,
            message=found["text"],
            source="nvcc",
            line=int(found["line"]),
            column=int(found["column"]),
        )
        for found in _HOST_ERROR.finditer(log)
    )


def _as_nvcc(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(finding.model_copy(update={"source": "nvcc"}) for finding in findings)


def _unexplained(log: str) -> Finding:
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "no reason given")
    return Finding(code="compile-error", severity=Severity.ERROR, message=f"nvcc failed: {last.strip()}", source="nvcc")


async def _with_nvrtc(
    file_name: str, text: str, gpu: GpuSpec, level: SandboxLevel, settings: Settings
) -> Built | BuildFailed | TimedOut:
    toolchain = find_toolchain(
        settings.cuda_directory, user_site_packages=site_packages(await find_python(settings.python))
    )
    async with Compiler(
        toolchain,
        cache=BuildCache(settings.cache_directory),
        n_processes=1,
        deadline_s=settings.compile_deadline_s,
        sandbox=level,
    ) as compiler:
        request = BuildRequest(
            text=device_text(text),
            file_name=file_name,
            name_expressions=tuple(dict.fromkeys(" ".join(name.split()) for name in _LAUNCHED.findall(text))),
            architecture=gpu.architecture.name,
        )
        return await compiler.compile(request)


def device_text(text: str) -> str:
    """Return the text with host functions and host headers blanked: every other line keeps its number."""
    source = parsed_source(text)
    data = bytearray(source.data)
    for node in source.root.children:
        if _is_host(node, source.data):
            kept = (byte if byte in b"\r\n" else ord(" ") for byte in data[node.start_byte : node.end_byte])
            data[node.start_byte : node.end_byte] = bytes(kept)
    return data.decode()


def _is_host(node: Node, data: bytes) -> bool:
    text = data[node.start_byte : node.end_byte].decode(errors="replace")
    if node.type == "preproc_include":
        return bool(_HOST_INCLUDE.match(text)) and not _DEVICE_HEADERS.search(text)
    if node.type not in ("function_definition", "template_declaration"):
        return False
    is_function = node.type == "function_definition" or any(c.type == "function_definition" for c in node.children)
    return is_function and not _ON_DEVICE.search(text.split("{", 1)[0])
