"""Compile CUDA text to PTX and ptxas facts, in a compiler process that can be killed.

    async with Compiler(toolchain, cache=cache) as compiler:
        outcome = await compiler.compile(BuildRequest(text=..., name_expressions=("rms_norm_rows<256>",)))

One NVRTC compile gives both: for a real architecture it keeps the PTX that its ptxas read.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.model import Noun
from kernel_lsp.core.verdict import BuildFailed, Built, TimedOut
from kernel_lsp.errors import EnvironmentProblem, SettingError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.profiles import compiler_confinement
from kernel_lsp.process.supervisor import Answered, Conversation, Died, Overran
from kernel_lsp.toolchain.integrity.masking import mask_comments
from kernel_lsp.toolchain.integrity.ptx_text import COMPILED_AS
from kernel_lsp.toolchain.integrity.refused_text import source_findings, without_line_directives
from kernel_lsp.toolchain.nvrtc import nvrtc_program
from kernel_lsp.toolchain.nvrtc.build_cache import BuildCache, content_key
from kernel_lsp.toolchain.nvrtc.diagnostics import assembler_findings, compiler_findings, kernel_facts
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain
from kernel_lsp.toolchain.nvrtc.parts import merged, parts_of
from kernel_lsp.toolchain.nvrtc.standard_headers import STANDARD_HEADERS

DEFAULT_ARCHITECTURE = "sm_90"
DEFAULT_DEADLINE_S = 60.0
DEFAULT_N_PROCESSES = 2
MIN_CHARACTERS_PER_S = 2000
"""Minimum characters that a compiler reads a second: a network's text may take longer than the deadline of others.
ResNet101's 0.5 MB take 22 s of one core, DenseNet201's 1.6 MB three times that (2026-11-28). VGG19's 0.2 MB had no end
within 60 s on 16 cores that seven networks shared."""
LONG_TEXT = 50_000
"""Minimum characters of a text whose kernels are compiled in parts, by all compiler processes."""
SPLIT = "--split-compile=0"
"""Use all cores. The PTX is the same but for the order of declarations."""
FIRST_WITH_SPLIT = 13
"""First major version of NVRTC for which the option was tried."""
NVCC_CONSTANTS = (
    *("-DINFINITY=__int_as_float(0x7f800000)", "-DHUGE_VALF=__int_as_float(0x7f800000)"),
    *("-DNAN=__int_as_float(0x7fffffff)", "-DFLT_MAX=3.402823466e+38F"),
    *("-DFLT_MIN=1.175494351e-38F", "-DFLT_EPSILON=1.192092896e-07F", "-DM_PI=3.14159265358979323846"),
    *("-DM_SQRT2=1.41421356237309504880", "-DM_SQRT1_2=0.70710678118654752440"),
    *("-DM_2_SQRTPI=1.12837916709551257390", "-DM_LOG2E=1.4426950408889634074"),
    *("-DM_LN2=0.69314718055994530942", "-DINT_MAX=0x7fffffff"),
)
"""Macros that nvcc's own headers define implicitly, used by kernels written for nvcc."""
FIXED_WIDTH = ("int8_t", "int16_t", "int32_t", "int64_t", "intptr_t")
FIXED_WIDTH_HEADER = "--pre-include=cuda/std/cstdint"
"""nvcc's own headers also provide int64_t and similar types."""
SHORT_TYPES = re.compile(r"\b(?:uint|ushort)\b")
SHORT_TYPES_HEADER = "short_types.h"
SHORT_TYPES_TEXT = "typedef unsigned short ushort; typedef unsigned int uint;\n"
"""Types that nvcc provides through the C library's headers."""
DEFAULT_OPTIONS = ("--std=c++17", "-lineinfo", "-default-device", "--ptxas-options=-v", *NVCC_CONSTANTS)
"""Excludes fast-math, which would change results silently."""
MAX_TEXT_BYTES = 4 << 20
MAX_LOG_CHARACTERS = 20_000
CACHE_FORMAT = "6"
"""Cache format, raised when stored outcomes become outdated."""

_NVRTC_INVALID_OPTION = 5  # nvrtcResult in <nvrtc.h>
_NVRTC_OUT_OF_MEMORY = 1
_ARCHITECTURE = re.compile(r"sm_\d{2,3}[af]?")
_NAME_EXPRESSION = re.compile(r"&?[A-Za-z_:][\w:<>,&*()+\-/%. =!|^~]*")
FIRST_WITH_OWN = 90
_PLAIN = re.compile(r"sm_(?P<number>\d{2,3})")
_ASKS = re.compile(r"\b__CUDA_ARCH_(?:FEAT_SM\d+_ALL|SPECIFIC__|FAMILY_SPECIFIC__)")
_INSTRUCTIONS = re.compile(r"\b(?:wgmma|setmaxnreg|tcgen05)\b")
_REFUSED = re.compile(r"not supported on \.target|cannot be compiled for architecture|requires \.target")
"""Errors of ptxas for an instruction of another architecture."""


class BuildRequest(Noun):
    """A compile request. `name_expressions` are the C++ names to resolve to symbols, e.g. ``rms_norm_rows<256>``;
    naming a template instantiates it. `architecture` is a real one such as ``sm_90``. `headers` are the project's own,
    by include name, of a text that no verdict is about; without them the text may include the toolkit's alone, and is
    refused what no honest kernel needs."""

    text: str
    file_name: str = COMPILED_AS
    name_expressions: tuple[str, ...] = ()
    architecture: str = DEFAULT_ARCHITECTURE
    options: tuple[str, ...] = DEFAULT_OPTIONS
    headers: dict[str, str] | None = None


class Compiler:
    """Up to `n_processes` warm compiler processes. A process that dies or hangs is replaced for the next request."""

    def __init__(
        self,
        toolchain: Toolchain,
        *,
        cache: BuildCache | None = None,
        n_processes: int = DEFAULT_N_PROCESSES,
        deadline_s: float = DEFAULT_DEADLINE_S,
        sandbox: SandboxLevel | None = None,
    ) -> None:
        """`sandbox` is the processes' confinement level; None selects the strongest of this machine."""
        self.toolchain = toolchain
        parts = (toolchain.nvrtc.parent, toolchain.nvrtc.resolve().parent, *toolchain.include_directories)
        self._confinement = compiler_confinement(
            sandbox_level("auto") if sandbox is None else sandbox, (*parts, Path(nvrtc_program.__file__))
        )
        self._cache = cache
        self._deadline_s = deadline_s
        self._n_processes, self._slots = n_processes, asyncio.Semaphore(n_processes)
        self._idle: list[Conversation] = []

    async def __aenter__(self) -> Compiler:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def compile(self, request: BuildRequest) -> Built | BuildFailed | TimedOut:
        """Compile one text. The text is not written to a file, and the compiler reads only the toolkit's headers.

        A text that needs architecture-specific features is compiled for ``sm_90a`` in place of ``sm_90``, which the
        build records; one that names such an instruction at once, since ptxas refuses the other build of a network
        after half a minute. Raises SettingError for an invalid architecture, EnvironmentProblem when the compiler does
        not start or does not know the architecture.
        """
        own = own_architecture(request.architecture)
        of_own = request.model_copy(update={"architecture": own})
        if own and asks_for_own(request.text):
            return await self._compile(of_own)
        specific: Built | BuildFailed | TimedOut | None = None
        if own and _INSTRUCTIONS.search(mask_comments(request.text)):
            specific = await self._compile(of_own)
            if isinstance(specific, TimedOut) or (isinstance(specific, Built) and _INSTRUCTIONS.search(specific.ptx)):
                return specific
        outcome = await self._compile(request)
        if not own or not isinstance(outcome, BuildFailed) or not needs_own(outcome.log):
            return outcome
        specific = specific or await self._compile(of_own)
        return outcome if isinstance(specific, BuildFailed) and needs_own(specific.log) else specific

    async def _compile(self, request: BuildRequest) -> Built | BuildFailed | TimedOut:
        if refused := _refuse(request):
            return BuildFailed(findings=refused)
        request = request.model_copy(update={"text": without_line_directives(request.text)})
        key = self._key(request)
        if self._cache is not None and (kept := self._cache.get(key)) is not None:
            return kept
        outcome, is_final = await self._compile_in_parts(request), True
        if outcome is None:
            answer = await self._ask(_message(request, self.toolchain), self._deadline_of(request))
            outcome, is_final = _outcome(request, answer, self.toolchain), isinstance(answer, Answered)
        if self._cache is not None and is_final and not isinstance(outcome, TimedOut):
            self._cache.put(key, outcome)
        return outcome

    async def _compile_in_parts(self, request: BuildRequest) -> Built | BuildFailed | TimedOut | None:
        """Compile the kernels of a long text side by side. None for a text that has to be compiled as a whole, which
        says what is wrong with it, too."""
        n_parts = self._n_processes if len(request.text) >= LONG_TEXT else 1
        asking = [
            asyncio.create_task(self._ask(_message(part, self.toolchain, is_part=True), self._deadline_of(part)))
            for part in _parts_of(request, n_parts)
        ]
        builds = list[Built]()
        try:
            for answering in asking:
                build = _outcome(request, await answering, self.toolchain)
                if not isinstance(build, Built):
                    return build if isinstance(build, TimedOut) else None
                builds.append(build)
        finally:
            await end_tasks(*asking)
        return await asyncio.to_thread(merged, builds) if builds else None

    def _deadline_of(self, request: BuildRequest) -> float:
        return max(self._deadline_s, len(request.text) / MIN_CHARACTERS_PER_S)

    def _key(self, request: BuildRequest) -> str:
        return content_key(
            CACHE_FORMAT, self.toolchain.version, str(self.toolchain.nvrtc), request.model_dump_json(exclude_none=True)
        )

    async def _ask(self, message: Mapping[str, Any], deadline_s: float) -> Answered | Died | Overran:
        async with self._slots:
            if self._idle:
                answer = await self._ask_one(self._idle.pop(), message, deadline_s)
                if not isinstance(answer, Died):
                    return answer
            # A warm process may have been killed while idle: only the death of a fresh one is the text's fault.
            return await self._ask_one(await self._start(), message, deadline_s)

    async def _ask_one(
        self, conversation: Conversation, message: Mapping[str, Any], deadline_s: float
    ) -> Answered | Died | Overran:
        try:
            return await conversation.ask(message, deadline_s=deadline_s)
        finally:
            # After a death, a missed deadline or a cancelled wait the conversation cannot continue.
            if conversation.is_alive:
                self._idle.append(conversation)

    async def _start(self) -> Conversation:
        program = Path(nvrtc_program.__file__)
        conversation = Conversation(
            [sys.executable, "-I", "-S", program, self.toolchain.nvrtc, self.toolchain.builtins],
            directory=Path("/"),
            confinement=self._confinement,
            how="run",
        )
        try:
            await conversation.start()
        except OSError as problem:
            raise EnvironmentProblem(
                f"the compiler process does not start: {problem}", next_step="run `kernel-lsp doctor`"
            ) from problem
        return conversation


async def compile_cuda(
    text: str,
    *,
    toolchain: Toolchain,
    file_name: str = "kernel.cu",
    name_expressions: tuple[str, ...] = (),
    architecture: str = DEFAULT_ARCHITECTURE,
    cache: BuildCache | None = None,
) -> Built | BuildFailed | TimedOut:
    """Compile one text in a new process. For many, keep a `Compiler`."""
    request = BuildRequest(text=text, file_name=file_name, name_expressions=name_expressions, architecture=architecture)
    async with Compiler(toolchain, cache=cache, n_processes=1) as compiler:
        return await compiler.compile(request)


def _refuse(request: BuildRequest) -> tuple[Finding, ...]:
    """Return the reasons to reject this text before compiling; empty if acceptable."""
    if not _ARCHITECTURE.fullmatch(request.architecture):
        raise SettingError(f"'{request.architecture}' is not an architecture", next_step="use one such as sm_90")
    if "\0" in request.text or not _is_encodable(request.text):
        return (_refusal("not-text", "the text holds NUL or half a surrogate pair"),)
    if len(request.text.encode()) > MAX_TEXT_BYTES:
        return (_refusal("too-large", f"the text is longer than {MAX_TEXT_BYTES} bytes"),)
    bad_names = [name for name in request.name_expressions if not _NAME_EXPRESSION.fullmatch(name)]
    if bad_names:
        return tuple(_refusal("no-such-kernel", f"'{name}' is not the name of a kernel") for name in bad_names)
    findings = source_findings(request.text, request.file_name) if request.headers is None else ()
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(code: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, message=message, source="nvrtc")


def _parts_of(request: BuildRequest, n_parts: int) -> list[BuildRequest]:
    return [
        request.model_copy(update={"text": part.text, "name_expressions": part.name_expressions})
        for part in parts_of(request.text, request.name_expressions, n_parts)
    ]


def _message(request: BuildRequest, toolchain: Toolchain, *, is_part: bool = False) -> dict[str, Any]:
    includes = [f"--include-path={directory}" for directory in toolchain.include_directories]
    if "stdint" not in request.text and any(name in request.text for name in FIXED_WIDTH):
        includes.append(FIXED_WIDTH_HEADER)
    if not is_part and len(request.text) >= LONG_TEXT and int(toolchain.version.partition(".")[0]) >= FIRST_WITH_SPLIT:
        includes.append(SPLIT)
    headers = {**STANDARD_HEADERS, **(request.headers or {})}
    if SHORT_TYPES.search(request.text):
        includes.append(f"--pre-include={SHORT_TYPES_HEADER}")
        headers = {**headers, SHORT_TYPES_HEADER: SHORT_TYPES_TEXT}
    return {
        "text": request.text,
        "file_name": request.file_name,
        "name_expressions": list(request.name_expressions),
        "options": [f"--gpu-architecture={request.architecture}", *request.options, *includes],
        "headers": headers,
    }


def _outcome(
    request: BuildRequest, answer: Answered | Died | Overran, toolchain: Toolchain
) -> Built | BuildFailed | TimedOut:
    match answer:
        case Overran(deadline_s):
            return TimedOut(message=f"the compiler found no end in {deadline_s:g} s", deadline_s=deadline_s)
        case Died(returncode, stderr):
            return _died(returncode, stderr)
        case Answered(reply):
            return _answered(request, reply, toolchain)


def _died(returncode: int, stderr: str) -> BuildFailed:
    """Attribute a compiler crash to the text, unless the library failed to load."""
    if "OSError" in stderr:
        raise EnvironmentProblem(
            f"NVRTC does not load: {stderr.strip().splitlines()[-1]}", next_step="run `kernel-lsp doctor`"
        )
    ending = f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
    return BuildFailed(
        findings=(_refusal("compiler-died", f"the compiler died on this text ({ending})"),),
        log=stderr[-MAX_LOG_CHARACTERS:],
    )


def _answered(request: BuildRequest, reply: Mapping[str, Any], toolchain: Toolchain) -> Built | BuildFailed:
    status, log, ptx = int(reply["status"]), str(reply["log"]), str(reply["ptx"])
    symbols = dict(reply["symbols"])
    kernels = {symbol: name for name, symbol in symbols.items()}
    said = compiler_findings(log, request.text, request.file_name, toolchain.include_directories)
    assembled = assembler_findings(log, ptx, request.text, request.file_name, kernels)
    if status == 0:
        return Built(
            architecture=request.architecture,
            ptx=ptx,
            cubins=(str(reply["cubin"]),) if reply["cubin"] else (),
            symbols=symbols,
            kernels=kernel_facts(log, kernels),
            warnings=said + assembled,
            compile_s=float(reply["compile_s"]),
        )
    if status == _NVRTC_INVALID_OPTION and "gpu-architecture" in log:
        raise EnvironmentProblem(
            f"NVRTC {toolchain.version} does not compile for {request.architecture}",
            next_step="choose a target GPU that it knows, or install another CUDA release",
        )
    findings = said + assembled
    if not any(finding.severity is Severity.ERROR for finding in findings):
        findings = (_unexplained(status, log), *findings)
    return BuildFailed(findings=findings, log=log[-MAX_LOG_CHARACTERS:])


def _unexplained(status: int, log: str) -> Finding:
    if status == nvrtc_program.TOO_LARGE_STATUS:
        return _refusal("too-large", f"the PTX is longer than {nvrtc_program.MAX_PTX_BYTES} bytes")
    if status == _NVRTC_OUT_OF_MEMORY:
        return _refusal("compiler-out-of-memory", "the compiler ran out of memory on this text")
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "it gave no reason")
    return _refusal("compile-error", f"NVRTC failed with status {status}: {last.strip()}")


def own_architecture(architecture: str) -> str:
    """Return ``sm_90a`` for ``sm_90``; empty when there is none, or it is one already."""
    match = _PLAIN.fullmatch(architecture)
    return f"{architecture}a" if match is not None and int(match["number"]) >= FIRST_WITH_OWN else ""


def is_plain(architecture: str) -> bool:
    """Return True for an architecture without specific features: ``sm_90``, but not ``sm_90a``."""
    return _PLAIN.fullmatch(architecture) is not None


def asks_for_own(text: str) -> bool:
    """Return True when the text tests for the architecture and so compiles differently there."""
    return _ASKS.search(text) is not None


def needs_own(log: str) -> bool:
    """Return True when ptxas rejected an instruction that may be architecture-specific."""
    return _REFUSED.search(log) is not None


def may_need_own(text: str) -> bool:
    """Return True when the text names such an instruction, or tests for the architecture."""
    return asks_for_own(text) or _INSTRUCTIONS.search(text) is not None
