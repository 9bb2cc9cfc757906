"""Builds torch extensions in seconds: device and host code apart, a precompiled header, and everything kept by content.

    async with ExtensionBuilder(facts, tools, cache_directory, architecture="sm_90", level=level) as builder:
        outcome = await builder.build(text, "kernel.cu")

A build runs confined, with a deadline; what a compiler prints is drained and bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import BuildFailed, TimedOut
from kernel_lsp.process.atomic_files import write_atomically
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.profiles import foreign_confinement
from kernel_lsp.process.supervisor import ProcessResult, run, scrubbed_environment
from kernel_lsp.source.extension import LAUNCH_HELPER, SplitExtension, split_extension
from kernel_lsp.toolchain.extension.facts import MODULE_NAME, ExtensionBuilt, ExtensionFacts, keep, read_kept
from kernel_lsp.toolchain.extension.headers import ALL_OPERATORS, Headers, headers_for, lean_text, may_lack_a_header
from kernel_lsp.toolchain.extension.tools import ExtensionTools
from kernel_lsp.toolchain.nvrtc.build_cache import content_key

FORMAT = "6"
"""Cache format, raised when cached builds become outdated."""
DEADLINE_S = 180.0
NO_OPERATORS = (
    "__CUDA_NO_HALF_OPERATORS__",
    "__CUDA_NO_HALF_CONVERSIONS__",
    "__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "__CUDA_NO_HALF2_OPERATORS__",
)
"""Macros that torch.utils.cpp_extension defines for nvcc, too. Without them, comparing two `c10::Half` is ambiguous."""
MAX_OUTPUT_BYTES = 1 << 20
MAX_FINDINGS = 50
MAX_LINE_CHARACTERS = 1000
"""Maximum characters of a log line, which bound the time to search it."""
CXX_OPTIMIZATION = "-O0"
"""Host code calls PyTorch and launches kernels; optimizing it doubles the build time and saves a microsecond per
call."""
_ERROR = re.compile(r"^[^\s:]*?([^\s:/]+\.(?:cu|cpp))[:(](\d+)\)?(?::(\d+))?:? (?:fatal )?error:? ?(.*)$", re.MULTILINE)


class ExtensionBuilder:
    """Builds for one torch and one GPU architecture. Use as ``async with``: on exit a header being precompiled for
    later builds is finished, or abandoned on an error."""

    def __init__(
        self,
        facts: ExtensionFacts,
        tools: ExtensionTools,
        cache_directory: Path,
        *,
        python: Path,
        architecture: str = "",
        level: SandboxLevel = SandboxLevel.NONE,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._facts, self._tools, self._python = facts, tools, python
        self._root = cache_directory / "extensions"
        self._architecture, self._level, self._deadline_s = architecture, level, deadline_s
        self._precompiling: asyncio.Task[float] | None = None

    async def __aenter__(self) -> ExtensionBuilder:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if self._precompiling is not None:
            if kind is not None:
                self._precompiling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._precompiling

    async def build(self, text: str, file_name: str) -> ExtensionBuilt | BuildFailed | TimedOut:
        """Build one file. Raises OSError when a compiler does not start."""
        key = content_key(FORMAT, text, file_name, self._architecture, *self._flags(), self._tools.version)
        kept = self._root / key[:2] / key
        if (found := read_kept(kept)) is not None:
            return found
        with tempfile.TemporaryDirectory(prefix="build-", dir=_made(self._root)) as folder:
            started = time.monotonic()
            outcome = await _Build(self, Path(folder), text, file_name).run()
            if not isinstance(outcome, ExtensionBuilt):
                return outcome
            stages = {**outcome.stages_s, "whole build": round(time.monotonic() - started, 3)}
            return keep(kept, Path(folder), outcome.model_copy(update={"stages_s": stages}))

    async def precompile(self, headers: Headers) -> float:
        """Precompile the header for the next builds; return the seconds it took, 0 if it exists."""
        folder = self._header_folder(headers)
        if (folder / "prelude.h.gch").exists():
            return 0.0
        self._write_lean(headers)
        with tempfile.TemporaryDirectory(prefix="header-", dir=_made(self._root)) as made:
            (Path(made) / "prelude.h").write_text(headers.prelude)
            command: list[str | Path] = [
                self._tools.cxx,
                *self._flags(headers),
                "-x",
                "c++-header",
                "prelude.h",
                "-o",
                "prelude.h.gch",
            ]
            result = await self.compile(command, Path(made))
            if result.returncode == 0:
                folder.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # another process was faster
                    os.rename(made, folder)
                    os.mkdir(made)
            return result.elapsed_s

    def headers_for(self, text: str) -> tuple[Headers, ...]:
        """Return the headers for the host code, followed by alternatives in case a name is missing."""
        return headers_for(text, self._facts.includes)

    def header(self, headers: Headers) -> Path | None:
        """Return the precompiled header if it exists; otherwise start building it for the next build."""
        folder = self._header_folder(headers)
        if (folder / "prelude.h.gch").exists():
            return folder / "prelude.h"
        if self._precompiling is None:
            self._precompiling = asyncio.create_task(self.precompile(headers))
        return None

    def host_command(self, headers: Headers, header: Path | None) -> list[str | Path]:
        """Return the command to compile host code, after the prelude and its operators."""
        self._write_lean(headers)
        included: list[str | Path] = ["-include", header or "prelude.h", "-include", "operators.h"]
        return [self._tools.cxx, *self._flags(headers), "-w", *included, "-c", "host.cpp", "-o", "host.o"]

    def device_command(self, name: str) -> list[str | Path]:
        """Return the command to compile kernels, with PyTorch's headers on the path for kernels that use its types."""
        includes = [f"-I{path}" for path in self._facts.includes]
        flags = ["-O3", f"-std={self.standard}", "-lineinfo", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC", "-w"]
        flags += [f"-D{name}" for name in NO_OPERATORS]
        macros = [f"-DTORCH_EXTENSION_NAME={MODULE_NAME}", f"-D_GLIBCXX_USE_CXX11_ABI={self._facts.cxx11_abi}"]
        nvcc = self._tools.nvcc or "nvcc"
        return [nvcc, *flags, *macros, f"-arch={self._architecture}", *includes, "-c", f"{name}.cu", "-o", f"{name}.o"]

    def link_command(self, objects: Sequence[str]) -> list[str | Path]:
        """Return the command to link all parts into a shared object."""
        folders = [*self._facts.library_directories, *self._tools.cuda_libraries]
        libraries = [f"-l{name}" for name in self._facts.libraries]
        runtime = self._facts.cuda_runtime or "-lcudart"
        cuda = (
            [runtime] if self._facts.cuda_version and (self._facts.cuda_runtime or self._tools.cuda_libraries) else []
        )
        return [self._tools.cxx, "-shared", *objects, *(f"-L{f}" for f in folders), *libraries, *cuda, "-o", "built.so"]

    async def compile(self, command: Sequence[str | Path], folder: Path) -> ProcessResult:
        """Run a compiler, with access to the folder, the headers and its own files only."""
        runtime = [Path(self._facts.cuda_runtime).parent] if self._facts.cuda_runtime else []
        own = [*self._facts.includes, *self._facts.library_directories, *runtime]
        readable = [*own, self._root, *self._tools.roots]
        confinement = foreign_confinement(
            self._level, self._python, readable=readable, scratch=folder, may_start_programs=True
        )
        return await run(
            command,
            deadline_s=self._deadline_s,
            directory=folder,
            environment=scrubbed_environment({"LC_ALL": "C"}),
            max_output_bytes=MAX_OUTPUT_BYTES,
            confinement=confinement,
        )

    @property
    def shared_stubs(self) -> tuple[str, ...]:
        """Return flags for kernels launched from another file."""
        return self._tools.shared_stubs

    @property
    def standard(self) -> str:
        """The C++ standard that this torch's headers require."""
        major, minor = (int(part) for part in self._facts.torch_version.split(".")[:2])
        return "c++20" if (major, minor) >= CXX20_SINCE else "c++17"

    @property
    def undefined_symbols_command(self) -> list[str | Path]:
        return [self._tools.nm, "-u", "--format=posix"]

    def _flags(self, headers: Headers = ALL_OPERATORS) -> list[str]:
        macros = [f"-DTORCH_EXTENSION_NAME={MODULE_NAME}", f"-D_GLIBCXX_USE_CXX11_ABI={self._facts.cxx11_abi}"]
        macros += [f"-D{name}" for name in headers.macros]
        lean = (self._lean_folder,) if headers.lean else ()
        includes = [f"-I{path}" for path in (*lean, *self._facts.includes, *self._tools.cuda_includes)]
        return [
            f"-std={self.standard}",
            CXX_OPTIMIZATION,
            "-fPIC",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            *macros,
            *includes,
        ]

    @property
    def _lean_folder(self) -> Path:
        places = [str(path) for path in self._facts.includes]
        return self._root / f"lean-{content_key(FORMAT, self._facts.torch_version, *places)}"

    def _write_lean(self, headers: Headers) -> None:
        """Write the missing lean headers, each atomically."""
        for name in headers.lean:
            made = self._lean_folder / name
            found = next((path for folder in self._facts.includes if (path := folder / name).is_file()), None)
            if found is None or made.exists():
                continue
            write_atomically(made, lean_text(name, found.read_text(encoding="utf-8")))

    def _header_folder(self, headers: Headers) -> Path:
        key = content_key(
            FORMAT, headers.prelude, self._facts.torch_version, self._tools.version, *self._flags(headers)
        )
        return self._root / f"header-{key}"


CXX20_SINCE = (2, 13)
"""First torch release whose build flags (torch/utils/cpp_extension.py) require C++20."""


class _Failed(Exception):
    """Internal: a compiler failed or timed out."""

    def __init__(self, outcome: BuildFailed | TimedOut) -> None:
        self.outcome = outcome


class _Build:
    """The build of one file in one folder."""

    def __init__(self, builder: ExtensionBuilder, folder: Path, text: str, file_name: str) -> None:
        self._builder, self._folder, self._text, self._file_name = builder, folder, text, file_name
        self._stages: dict[str, float] = {}
        self._notes: list[str] = []

    async def run(self) -> ExtensionBuilt | BuildFailed | TimedOut:
        try:
            if "__global__" not in self._text and "<<<" not in self._text:
                return await self._host_only()
            split = split_extension(self._text)
            if isinstance(split, SplitExtension):
                try:
                    return await self._split(split)
                except _Failed as failed:
                    if isinstance(failed.outcome, TimedOut):
                        raise
                    self._notes.append("its halves do not compile apart, so that it was compiled whole")
            else:
                self._notes.append(f"compiled whole: {split.reason}")
            return await self._whole()
        except _Failed as failed:
            return failed.outcome

    async def _host_only(self) -> ExtensionBuilt:
        header = await self._host(self._text)
        return await self._linked(["host.o"], "host only", header)

    async def _split(self, split: SplitExtension) -> ExtensionBuilt:
        """Compile both halves; non-template kernels need not wait for the host code's list of launched instances."""
        host = asyncio.create_task(self._host(LAUNCH_HELPER + split.host))
        try:
            if not split.templates:
                await self._device(split.device)
            header = await host
            if split.templates:
                await self._device(split.device + await self._instances(split))
        finally:
            host.cancel()
            with contextlib.suppress(asyncio.CancelledError, _Failed):
                await host
        return await self._linked(["host.o", "device.o"], "split", header)

    async def _whole(self) -> ExtensionBuilt:
        (self._folder / "whole.cu").write_text(self._text)
        await self._step("nvcc", self._builder.device_command("whole"))
        return await self._linked(["whole.o"], "whole", None)

    async def _host(self, text: str) -> Path | None:
        """Compile host code, starting from the precompiled header."""
        first, *larger = self._builder.headers_for(text)
        try:
            return await self._host_with(first, text)
        except _Failed as failed:
            if not larger or not isinstance(failed.outcome, BuildFailed) or not may_lack_a_header(failed.outcome.log):
                raise
        self._notes.append("its host code was compiled twice: it names more of PyTorch than it shows")
        return await self._host_with(larger[0], text)

    async def _host_with(self, headers: Headers, text: str) -> Path | None:
        header = self._builder.header(headers)
        (self._folder / "prelude.h").write_text(headers.prelude)
        (self._folder / "operators.h").write_text(headers.operators)
        (self._folder / "host.cpp").write_text(headers.without_replaced(text))
        await self._step("host compiler", self._builder.host_command(headers, header))
        return header

    async def _device(self, text: str) -> None:
        (self._folder / "device.cu").write_text(text)
        await self._step("nvcc", [*self._builder.device_command("device"), *self._builder.shared_stubs])

    async def _instances(self, split: SplitExtension) -> str:
        """Return explicit instantiations of the template kernels that the host object file references."""
        wanted = await self._step("nm", [*self._builder.undefined_symbols_command, "-C", "host.o"])
        names = "|".join(map(re.escape, split.templates))
        found = re.findall(rf"^(void (?:\w+::)*(?:{names})<.*\)) U", wanted, re.MULTILINE)
        needs_half = any("c10::" in each for each in found)
        headers = "#include <c10/util/Half.h>\n#include <c10/util/BFloat16.h>\n" if needs_half else ""
        return headers + "".join(f"template __global__ {each};\n" for each in found)

    async def _linked(
        self, objects: Sequence[str], how: Literal["host only", "split", "whole"], header: Path | None
    ) -> ExtensionBuilt:
        await self._step("link", self._builder.link_command(objects))
        # From the object files: a compiler may link parts of the C++ library statically, which reference more.
        commands = [[*self._builder.undefined_symbols_command, each] for each in objects]
        listed = "".join([await self._step("symbols", command) for command in commands])
        return ExtensionBuilt(
            path=self._folder / "built.so",
            undefined_symbols=tuple(sorted({line.split()[0] for line in listed.splitlines() if line.strip()})),
            how=how,
            header="precompiled" if header is not None else "read",
            notes=tuple(self._notes),
            stages_s=self._stages,
        )

    async def _step(self, name: str, command: Sequence[str | Path]) -> str:
        result = await self._builder.compile(command, self._folder)
        self._stages[name] = round(self._stages.get(name, 0.0) + result.elapsed_s, 3)
        log = (result.stdout + result.stderr).decode(errors="replace")
        if result.timed_out:
            message = f"the {name} found no end in {result.elapsed_s:.0f} s"
            raise _Failed(TimedOut(message=message, deadline_s=result.elapsed_s))
        if result.returncode != 0:
            raise _Failed(BuildFailed(findings=_findings(log, name, result.returncode), log=log[-MAX_OUTPUT_BYTES:]))
        return result.stdout.decode(errors="replace")


def _findings(log: str, tool: str, status: int) -> tuple[Finding, ...]:
    """Return the compiler's errors with lines, which `#line` maps to the user's file."""
    log = "\n".join(line[:MAX_LINE_CHARACTERS] for line in log.splitlines())
    found = tuple(
        Finding(
            code="compile-error",
            severity=Severity.ERROR,
            message=match[4].strip() or "error",
            source=tool,
            line=int(match[2]),
            column=int(match[3]) if match[3] else None,
        )
        for match in list(_ERROR.finditer(log))[:MAX_FINDINGS]
    )
    last = next((line for line in reversed(log.splitlines()) if line.strip()), f"it ended with status {status}")
    return found or (Finding(code="compile-error", severity=Severity.ERROR, message=last.strip()[:500], source=tool),)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
