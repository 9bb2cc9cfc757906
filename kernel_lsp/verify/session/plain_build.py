"""Compile a `.cu` file that has no launch plan: compiler errors, ptxas facts and static findings, but no verdict."""

from __future__ import annotations

import base64
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Set
from pathlib import Path

from tree_sitter import Node

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import BuildFailed, Built, TimedOut, Unsupported, Verdict
from kernel_lsp.errors import EnvironmentProblem, page
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.interpreter import find_python, site_packages
from kernel_lsp.process.profiles import foreign_confinement
from kernel_lsp.process.supervisor import run, scrubbed_environment
from kernel_lsp.rules import pytorch
from kernel_lsp.rules.cuda.checking import check
from kernel_lsp.rules.finding import SOURCE, RuleFinding
from kernel_lsp.source.cuda import kernel_signatures, parsed_source, without_comments_and_strings
from kernel_lsp.source.extension import PYTORCH_NAMES, foreign_source
from kernel_lsp.source.plan_draft import draft_plan
from kernel_lsp.source.project_headers import project_headers
from kernel_lsp.toolchain.extension.tools import ExtensionTools, find_extension_tools
from kernel_lsp.toolchain.nvrtc.build_cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.diagnostics import compiler_findings, kernel_facts
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain, find_toolchain
from kernel_lsp.verify.devices.building import names_without_sizes

NO_PLAN = "no launch plan, so nothing was run: add one at the top of the file"
NO_KERNEL = "PyTorch code and no kernel: only the static rules were run"
NO_TASK = "no task to check this kernel against: `kernel-lsp check {} --task model.py::symbol` names one"
PLAN_PAGE = f"{page('kernel-format.md')} describes launch plans"
MAX_LOG_BYTES = 1 << 20
CUBIN = "o.cubin"
NVCC_OPTIONS = ("-cubin", "-std=c++17", "-lineinfo", "--keep", "-Xptxas", "-v")
DISPATCHED, DISPATCHED_AS = re.compile(r"\bscalar_t\b"), "float"
"""The type that PyTorch's dispatch macros define around a launch, and the type compiled for it."""
_LAUNCHED = re.compile(r"\b([A-Za-z_][\w:]*\s*<[^;<>()]*>)\s*<<<")
_HOST_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:\w+|cuda_runtime(?:_api)?\.h|sys/\w+\.h|unistd\.h|(?:torch|ATen|c10|pybind11)/.*)>"
)
_DEVICE_HEADERS = re.compile(r"<(?:stdint|cstdint|float|cfloat|limits|climits|math|cmath|type_traits|utility|array)")
_HOST_CODE = re.compile(r"<<<|\bint\s+main\s*\(")
_ON_DEVICE = re.compile(r"\b(?:__global__|__device__|constexpr)\b")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.*)$", re.M)
_WORD = re.compile(r"\w+")
_HOST_ERROR = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<text>.*)$", re.M)


def is_plain(file_name: str, text: str) -> bool:
    """Return True for a `.cu` file without a launch plan that is no torch extension."""
    if not file_name.endswith(".cu") or foreign_source(file_name, text) is not None:
        return False
    parsed = parse(text)
    return parsed.plan is None and any(found.code == PlanCode.NO_PLAN for found in parsed.findings)


async def check_plain(kernel: Path, text: str, settings: Settings) -> Verdict:
    """Compile with nvcc where it is found, else the device code with NVRTC. Raises EnvironmentProblem, SettingError."""
    tools = await find_nvcc()
    if tools is not None:
        device, architecture = "nvcc", find_gpu(settings.target_gpu).architecture.name
        built = await build_with_nvcc(kernel, text, tools, architecture, sandbox_level(settings.sandbox), settings)
    else:
        device = "NVRTC"
        built = await _with_found_nvrtc(kernel, text, settings)
    if isinstance(built, BuildFailed | TimedOut):
        return _verdict(text, device, built)
    return _verdict(text, device, Unsupported(message=NO_PLAN), built, _plan_notes(kernel, text))


async def check_without_task(kernel: Path, text: str, kind: str, settings: Settings) -> Verdict:
    """Return what can be said of a kernel with host code of its own when no task is named: of a `.cu` file NVRTC
    compiles the device code, which takes a second where the whole takes most of a minute."""
    outcome: BuildFailed | TimedOut | Unsupported = Unsupported(message=NO_TASK.format(shlex.quote(kernel.name)))
    if kernel.suffix == ".py":  # the rules read CUDA
        return _verdict("", "static rules", outcome).model_copy(update={"foreign": kind})
    try:
        built = await _with_found_nvrtc(kernel, text, settings)
    except EnvironmentProblem:  # the rules need no compiler
        return _verdict(text, "static rules", outcome).model_copy(update={"foreign": kind})
    if isinstance(built, BuildFailed | TimedOut) and not PYTORCH_NAMES.search(device_text(text)):
        outcome = built
    verdict = _verdict(text, "NVRTC", outcome, built if isinstance(built, Built) else None)
    return verdict.model_copy(update={"foreign": kind})


async def _with_found_nvrtc(kernel: Path, text: str, settings: Settings) -> Built | BuildFailed | TimedOut:
    """Compile the instances that the file launches, for the target GPU. Raises EnvironmentProblem without NVRTC."""
    user = site_packages(await find_python(settings.python))
    toolchain = find_toolchain(settings.cuda_directory, user_site_packages=user)
    architecture, level = find_gpu(settings.target_gpu).architecture.name, sandbox_level(settings.sandbox)
    return await build_with_nvrtc(kernel, text, instances(text), toolchain, architecture, level, settings)


def check_pytorch(text: str) -> Verdict:
    """Return the static findings of a Python file without a kernel."""
    note = "next: kernel-lsp optimize FILE.py::SYMBOL makes a kernel of a function or an nn.Module"
    verdict = _verdict("", "static rules", Unsupported(message=NO_KERNEL), notes=(note,))
    return verdict.model_copy(update={"findings": _as_findings(pytorch.check(text))})


def without_static(verdict: Verdict) -> Verdict:
    """Return the verdict for an editor, which shows the rules' findings itself."""
    kept = tuple(found for found in verdict.findings if found.source != SOURCE)
    return verdict.model_copy(update={"findings": kept})


def static_findings(text: str) -> tuple[Finding, ...]:
    """Return what the CUDA rules find, as findings of a verdict."""
    return _as_findings(check(text))


def _as_findings(found: Iterable[RuleFinding]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            code=each.code,
            severity=each.severity,
            message=each.message,
            source=SOURCE,
            line=each.range.start_line + 1,
            column=each.range.start_column + 1,
        )
        for each in found
    )


async def find_nvcc() -> ExtensionTools | None:
    try:
        tools = await find_extension_tools()
    except EnvironmentProblem:
        return None  # nvcc preprocesses with the C++ compiler
    return tools if tools.nvcc is not None else None


async def build_with_nvcc(
    kernel: Path, text: str, tools: ExtensionTools, architecture: str, level: SandboxLevel, settings: Settings
) -> Built | BuildFailed | TimedOut:
    """Compile the whole file, host code included, as nvcc does."""
    folder, deadline_s = kernel.absolute().parent, settings.compile_deadline_s
    headers = project_headers(kernel, text)
    includes = [f"-I{each}" for each in (folder, *headers.folders)]
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-nvcc-") as made:
        scratch = Path(made)
        (scratch / kernel.name).write_text(text, encoding="utf-8")
        result = await run(
            [tools.nvcc or "nvcc", *NVCC_OPTIONS, f"-arch={architecture}", *includes, kernel.name, "-o", CUBIN],
            deadline_s=deadline_s,
            directory=scratch,
            environment=scrubbed_environment({"LC_ALL": "C"}),
            max_output_bytes=MAX_LOG_BYTES,
            confinement=foreign_confinement(
                level,
                Path(sys.executable),
                readable=(folder, *headers.readable, *tools.roots),
                scratch=scratch,
                may_start_programs=True,
            ),
        )
        ptx, cubin = _made(scratch, "*.ptx").decode(errors="replace"), _made(scratch, CUBIN)
    if result.timed_out:
        return TimedOut(message=f"nvcc exceeded its {deadline_s:g} s", deadline_s=deadline_s)
    log = (result.stdout + result.stderr).decode(errors="replace")
    findings = tuple(
        finding.model_copy(update={"source": "nvcc"})
        for finding in (*compiler_findings(log, text, kernel.name), *_host_errors(log))
    )
    if result.returncode != 0:
        return BuildFailed(findings=findings or (_unexplained(log),), log=log)
    codes = (base64.b64encode(cubin).decode(),)
    kernels = kernel_facts(log, {})
    return Built(architecture=architecture, ptx=ptx, cubins=codes, symbols={}, kernels=kernels, warnings=findings)


async def build_with_nvrtc(
    kernel: Path,
    text: str,
    names: tuple[str, ...],
    toolchain: Toolchain,
    architecture: str,
    level: SandboxLevel,
    settings: Settings,
) -> Built | BuildFailed | TimedOut:
    """Compile the device code with these instances of templates. One that only host code can name is left out.

    The file may include the project's headers: no verdict depends on them.
    """
    headers = {name: device_text(each) for name, each in project_headers(kernel, text).texts().items()}
    async with Compiler(
        toolchain,
        cache=BuildCache(settings.cache_directory),
        n_processes=1,
        deadline_s=settings.compile_deadline_s,
        sandbox=level,
    ) as compiler:
        request = BuildRequest(
            text=device_text(text),
            file_name=kernel.name,
            name_expressions=names,
            architecture=architecture,
            headers=headers,
        )
        built = await compiler.compile(request)
        if isinstance(built, BuildFailed) and (known := _without_unknown(request.name_expressions, built)) is not None:
            built = await compiler.compile(request.model_copy(update={"name_expressions": known}))
        return built


def instances(text: str) -> tuple[str, ...]:
    """Return the instances of templates that the plan or the host code launches, such as ``scale<64>``."""
    plan = parse(text).plan
    if plan is not None:
        return tuple(sorted(names_without_sizes(plan, kernel_signatures(text))))
    names = (DISPATCHED.sub(DISPATCHED_AS, " ".join(name.split())) for name in _LAUNCHED.findall(text))
    return tuple(dict.fromkeys(names))


def planned_text(text: str) -> str:
    """Return the text of a file with a launch plan as it is compiled: without the host code that launches its kernels,
    which a plan replaces."""
    return device_text(text) if _HOST_CODE.search(without_comments_and_strings(text)) else text


def device_text(text: str) -> str:
    """Return the text with host functions and host headers blanked: every other line keeps its number."""
    source = parsed_source(text)
    data = bytearray(source.data)
    macros = {name for name, body in _MACRO.findall(text) if _ON_DEVICE.search(body)}
    for node in source.root.children:
        if _is_host(node, source.data, macros):
            kept = (byte if byte in b"\r\n" else ord(" ") for byte in data[node.start_byte : node.end_byte])
            data[node.start_byte : node.end_byte] = bytes(kept)
    return data.decode()


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


def _plan_notes(file: Path, text: str) -> tuple[str, ...]:
    if not draft_plan(text):
        return (PLAN_PAGE,)
    return (f"next: kernel-lsp plan {shlex.quote(str(file))} --write drafts the plan", PLAN_PAGE)


def _made(folder: Path, pattern: str) -> bytes:
    """Return the contents of the file that the compiler made; empty without one."""
    found = next(folder.glob(pattern), None)
    return found.read_bytes() if found is not None else b""


def _without_unknown(names: tuple[str, ...], failed: BuildFailed) -> tuple[str, ...] | None:
    """Return the names without those that the compiler does not know; None where it found something else, too."""
    unknown = {finding.kernel for finding in failed.findings if finding.code == "no-such-kernel"}
    only = all(found.code == "no-such-kernel" for found in failed.findings if found.severity is Severity.ERROR)
    return tuple(name for name in names if name not in unknown) if only and unknown & {*names} else None


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


def _unexplained(log: str) -> Finding:
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "no reason given")
    return Finding(code="compile-error", severity=Severity.ERROR, message=f"nvcc failed: {last.strip()}", source="nvcc")


def _is_host(node: Node, data: bytes, macros: Set[str]) -> bool:
    """Check for what a host compiler alone reads; `macros` stand for a mark of device code."""
    text = data[node.start_byte : node.end_byte].decode(errors="replace")
    if node.type == "preproc_include":
        return bool(_HOST_INCLUDE.match(text)) and not _DEVICE_HEADERS.search(text)
    if node.type not in ("function_definition", "template_declaration"):
        return False
    is_function = node.type == "function_definition" or any(c.type == "function_definition" for c in node.children)
    head = text.split("{", 1)[0]
    return is_function and not _ON_DEVICE.search(head) and macros.isdisjoint(_WORD.findall(head))
