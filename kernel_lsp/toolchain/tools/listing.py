"""Print a cubin's instructions (SASS) by nvdisasm, and split PTX and SASS into functions with their source lines."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.profiles import linter_confinement
from kernel_lsp.process.supervisor import run, scrubbed_environment
from kernel_lsp.toolchain.integrity.ptx_text import place_of, user_file_numbers
from kernel_lsp.toolchain.tools.binaries import TOOLKIT_BIN_DIRECTORIES

_PTX_HEADER = re.compile(r"\.(?:entry|func)\b")
_PTX_NAME = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([$%\w]+)")
_SASS_SECTION = re.compile(r"^\s*\.section\s+\.text\.([$\w]+)")
_SASS_PLACE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_SASS_CODE = re.compile(r"^\s*(?:/\*[0-9a-f]{4,}\*/|\.L\w+:)")
_SASS_TARGET = re.compile(r"\((\.L\w+)\)")
_SASS_PADDING = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+NOP ?;")
NAME = "nvdisasm"
OPTIONS = ("-c", "-gi")
WHEEL_PLACES = ("nvidia/*/bin", "triton/backends/nvidia/bin")
"""Folders of wheels that have it: NVIDIA's own, and Triton's, which comes with PyTorch for CUDA."""
INSTALL = "pip install nvidia-cuda-nvdisasm, or install a CUDA toolkit"
DEADLINE_S = 30.0
MAX_OUTPUT_BYTES = 64 << 20


@dataclass(frozen=True)
class ListedLine:
    """One line of a listing. `source` is the 1-based line of the user's file, None for code of no line there."""

    text: str
    source: int | None


@dataclass(frozen=True)
class Listing:
    """The code of one function."""

    symbol: str
    lines: tuple[ListedLine, ...]

    def n_lines_of(self, first: int, last: int) -> int:
        """Return how many lines come from the source lines ``[first, last]``."""
        return sum(line.source is not None and first <= line.source <= last for line in self.lines)


def ptx_listings(ptx: str, file_name: str) -> tuple[Listing, ...]:
    """Return each function with a body; `.loc` lines become the places of the lines after them."""
    return tuple(_ptx_function(part, user_file_numbers(ptx, file_name)) for part in _ptx_functions(ptx))


def sass_listings(text: str, file_name: str) -> tuple[Listing, ...]:
    """Return each function of what ``nvdisasm -c -gi`` prints, without directives and the padding at its end."""
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if match := _SASS_SECTION.match(line):
            lines = parts.setdefault(match[1], [])
        lines.append(line)
    return tuple(Listing(symbol, tuple(_sass_lines(part, file_name))) for symbol, part in parts.items() if symbol)


def _ptx_functions(ptx: str) -> Iterator[list[str]]:
    """Yield the lines of each function, from its header to the brace that closes it."""
    part: list[str] = []
    depth = 0
    for line in ptx.splitlines():
        if not part and not _PTX_HEADER.search(line.partition("//")[0]):
            continue
        part.append(line)
        code = line.partition("//")[0]
        was, depth = depth, depth + code.count("{") - code.count("}")
        if depth <= 0 and (was > 0 or ";" in code):
            if "}" in code:
                yield part
            part, depth = [], 0


def _ptx_function(part: list[str], user_files: frozenset[str]) -> Listing:
    name = _PTX_NAME.search("\n".join(part))
    lines: list[ListedLine] = []
    source: int | None = None
    for line in part:
        place = place_of(line.strip(), user_files)
        if place is not None:
            source = place.line
        elif line.strip() or (lines and lines[-1].text):
            lines.append(ListedLine(line, source if line.strip() else None))
    return Listing(name[1] if name else "", tuple(lines))


def _sass_lines(part: Sequence[str], file_name: str) -> Iterator[ListedLine]:
    """Yield instructions, and labels that one jumps to. Of the places in a row, which go from the inlined code
    outwards, the first in the user's file counts."""
    source: int | None = None
    is_marked = False
    targets = {label for line in part for label in _SASS_TARGET.findall(line)}
    for line in part:
        if match := _SASS_PLACE.match(line):
            source = None if not is_marked else source
            is_marked = True
            if source is None and f"/{match[1]}".endswith(f"/{file_name}"):
                source = int(match[2])
        elif _SASS_CODE.match(line) and not _SASS_PADDING.match(line) and _is_used(line, targets):
            is_marked = False
            yield ListedLine(line.rstrip(), source)


def _is_used(line: str, targets: set[str]) -> bool:
    """Return False for a label that no instruction names."""
    text = line.strip()
    return not text.startswith(".L") or text.rstrip(":") in targets


def find_nvdisasm(site_packages: Sequence[Path] = ()) -> Path:
    """Return the program: of the PATH, of a toolkit, or of a wheel here or in `site_packages`.

    Raises EnvironmentProblem, with the command that installs it.
    """
    own = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    wheels = [found for root in (*own, *site_packages) for place in WHEEL_PLACES for found in sorted(root.glob(place))]
    toolkits = [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = (os.environ.get("PATH", ""), *map(str, (*toolkits, *TOOLKIT_BIN_DIRECTORIES, *wheels)))
    found = shutil.which(NAME, path=os.pathsep.join(folders))
    if found is None:
        raise EnvironmentProblem(f"SASS needs {NAME}, which is not on this machine", next_step=INSTALL)
    return Path(found)


async def disassemble(cubin: bytes, program: Path, level: SandboxLevel) -> str:
    """Return the SASS of every function with its source lines. Raises EnvironmentProblem when the program fails."""
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-sass-") as made:
        file = Path(made) / "kernel.cubin"
        file.write_bytes(cubin)
        result = await run(
            [program, *OPTIONS, file],
            deadline_s=DEADLINE_S,
            directory=file.parent,
            environment=scrubbed_environment({"LC_ALL": "C"}),
            max_output_bytes=MAX_OUTPUT_BYTES,
            confinement=linter_confinement(level, program, (file,)),
        )
    if result.returncode != 0 or result.timed_out:
        said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
        reason = "it did not end in time" if result.timed_out else (said[-1] if said else "no reason given")
        raise EnvironmentProblem(f"{NAME} failed: {reason}", next_step=f"update it: {INSTALL}")
    return result.stdout.decode(errors="replace")
