"""clang-tidy on device code, where it is installed: its command line and its diagnostics as findings."""

from __future__ import annotations

import re
from pathlib import Path

from kernel_lsp.core.finding import Finding, Severity

CHECKS = "-*,bugprone-*,clang-analyzer-core.*,performance-*,-bugprone-easily-swappable-parameters"
SOURCE = "clang-tidy"
_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?P<kind>warning|error): (?P<text>.*)$")
_CODE = re.compile(r"\s*\[(?P<code>[\w.,-]+)\]$")


def tidy_command(clang_tidy: Path, kernel: Path, architecture: str, cuda: Path | None) -> list[str | Path]:
    """Lint one file as CUDA device code for one architecture; without a toolkit of its own, clang's is left out."""
    toolkit = [f"--cuda-path={cuda}"] if cuda is not None else ["-nocudainc", "-nocudalib"]
    compile_as = ["-x", "cuda", "--cuda-device-only", f"--cuda-gpu-arch={architecture}", "-std=c++17", *toolkit]
    return [clang_tidy, f"--checks={CHECKS}", "--quiet", kernel, "--", *compile_as]


def parse_tidy(text: str, kernel: Path) -> tuple[Finding, ...]:
    """Diagnostics in the kernel's own file. Errors are left out: they are clang's failing to read CUDA headers, and
    NVRTC, which compiles the text, has its own."""
    lines = (_DIAGNOSTIC.match(line) for line in text.splitlines())
    return tuple(_finding(match) for match in lines if match is not None and _is_ours(match, kernel))


def _is_ours(match: re.Match[str], kernel: Path) -> bool:
    return Path(match["file"]).name == kernel.name and match["kind"] == "warning"


def _finding(match: re.Match[str]) -> Finding:
    code = _CODE.search(match["text"])
    return Finding(
        code=code["code"] if code else SOURCE,
        severity=Severity.INFORMATION,
        message=_CODE.sub("", match["text"]),
        source=SOURCE,
        file=Path(match["file"]).name,
        line=int(match["line"]),
        column=int(match["column"]),
    )
