"""Compile a text of many kernels in parts, each by a compiler of its own, and merge what they give.

parts = parts_of(text, name_expressions, 16)  # empty for a text that is compiled as a whole
merged(builds)                                # None where parts have more in common than kernels

NVRTC's own `--split-compile` leaves a quarter of the work to one thread: 6.2 of ResNet101's 24 s of a processor. A part
is the whole text, whose lines stay, with the other parts' kernels as templates that nobody instantiates. Parsing it
takes 2 % of that time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.masking import mask_literals

_GLOBAL = re.compile(r"\b__global__\b")
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(")
_VARIABLE = re.compile(r"\b__(?:constant|managed)__|\b__device__\b[^(){};]*[;=\[]")
"""Variables of a module, as far as the text shows them: kernels of several modules would each have their own."""
_TEMPLATE = "template <class> "
_IS_TEMPLATE = re.compile(r"^(?!\s*#)[^\n]*>\s*(?:static\s+)?\Z", re.M)
"""The end of a template's parameters, and not of an include."""
_ENTRY = re.compile(r"^\.(?:visible|weak) \.entry ", re.M)
_BRACE = re.compile(r"[{}]")
_HEADER = re.compile(r"\A.*?^\.address_size \d+\n", re.S | re.M)
_STRINGS = re.compile(r"^\t\.section\t\.debug_str\n?\s*\{(.*?)^\t}\n", re.S | re.M)
_STRING = re.compile(r"\$L__info_string(?=\d)")
_FILE = re.compile(r'^\t\.file\t\d+ "[^"\n]*"\n', re.M)
_SHARED = re.compile(r"^(?:\.extern )?\.shared [^;\n]*?([\w$]+)(?:\[\d*])*;\n", re.M)
_COMMENT = re.compile(r"^\s*//[^\n]*\n", re.M)


@dataclass(frozen=True)
class Part:
    """A text that has the code of some kernels, and the name expressions of these."""

    text: str
    name_expressions: tuple[str, ...]


@dataclass(frozen=True)
class _Kernel:
    name: str
    start: int
    n_characters: int


def parts_of(text: str, name_expressions: Sequence[str], n_parts: int) -> list[Part]:
    """Return at most `n_parts` parts of about equal length. Empty for a text with one kernel, with a variable of the
    module, or with kernels of a form that this does not know."""
    code = mask_literals(text)
    found = list(_KERNEL.finditer(code))
    if min(n_parts, len(found)) < 2 or len(found) != len(_GLOBAL.findall(code)):
        return []
    if _VARIABLE.search(code) or 'extern "C"' in text:
        return []
    ends = [*(match.start() for match in found[1:]), len(text)]
    kernels = [_Kernel(m[1], m.start(), end - m.start()) for m, end in zip(found, ends, strict=True)]
    names = {kernel.name for kernel in kernels}
    if any(_base(name) not in names for name in name_expressions):
        return []
    return [
        Part(_with_kernels(text, code, kernels, own), tuple(name for name in name_expressions if _base(name) in own))
        for own in _shared_out(kernels, n_parts)
    ]


def merged(builds: Sequence[Built]) -> Built | None:
    """Return the parts of one text as one build."""
    ptx = _merged_ptx([build.ptx for build in builds])
    if ptx is None:
        return None
    return builds[0].model_copy(
        update={
            "ptx": ptx,
            "cubins": tuple(cubin for build in builds for cubin in build.cubins),
            "symbols": {name: symbol for build in builds for name, symbol in build.symbols.items()},
            "kernels": tuple(kernel for build in builds for kernel in build.kernels),
            "warnings": tuple({str(warning): warning for build in builds for warning in build.warnings}.values()),
            "compile_s": max(build.compile_s for build in builds),
        }
    )


def _base(name_expression: str) -> str:
    return name_expression.partition("<")[0]


def _shared_out(kernels: Sequence[_Kernel], n_parts: int) -> list[set[str]]:
    """Return the names of each part's kernels: the longest first, each to the part that has the least. Overloads stay
    together."""
    lengths: dict[str, int] = {}
    for kernel in kernels:
        lengths[kernel.name] = lengths.get(kernel.name, 0) + kernel.n_characters
    parts = [(0, set[str]()) for _ in range(min(n_parts, len(lengths)))]
    for name in sorted(lengths, key=lambda name: -lengths[name]):
        least = min(range(len(parts)), key=lambda n: parts[n][0])
        parts[least] = parts[least][0] + lengths[name], parts[least][1] | {name}
    return [names for _, names in parts]


def _with_kernels(text: str, code: str, kernels: Sequence[_Kernel], own: set[str]) -> str:
    pieces, end = list[str](), 0
    for kernel in kernels:
        is_template = _IS_TEMPLATE.search(code[end : kernel.start]) is not None
        pieces += [text[end : kernel.start], "" if kernel.name in own or is_template else _TEMPLATE]
        end = kernel.start
    return "".join([*pieces, text[end:]])


def _merged_ptx(texts: Sequence[str]) -> str | None:
    """Return one module of several that share nothing but declarations of shared memory, which each launch has of its
    own; None for others, e.g. with variables."""
    bodies, shared, strings = list[str](), dict[str, str](), list[str]()
    header, files = _HEADER.match(texts[0]), _FILE.findall(texts[0])
    for number, text in enumerate(texts):
        own = _HEADER.match(text)
        if header is None or own is None or _plain(own[0]) != _plain(header[0]) or _FILE.findall(text) != files:
            return None
        body = _STRING.sub(f"$L__info_string{number}_", text[own.end() :])
        for declared in _SHARED.finditer(body):
            if shared.setdefault(declared[1], declared[0]) != declared[0]:
                return None
        strings += [found[1] for found in _STRINGS.finditer(body)]
        entries, left = _entries(body)
        for known in (_STRINGS, _FILE, _SHARED, _COMMENT):
            left = known.sub("", left)
        if left.strip():
            return None
        bodies += entries
    assert header is not None, "there is a part"
    section = ["\t.section\t.debug_str\n\t{", *strings, "\t}\n"] if strings else []
    return "".join([header[0], "\n", *shared.values(), "\n", *(f"{body}\n\n" for body in bodies), *files, *section])


def _entries(body: str) -> tuple[list[str], str]:
    """Return the kernels of a module, and all else."""
    entries, left, end = list[str](), list[str](), 0
    for entry in _ENTRY.finditer(body):
        left.append(body[end : entry.start()])
        depth, start = 0, entry.start()
        for brace in _BRACE.finditer(body, start):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                end = brace.end()
                break
        entries.append(body[start:end])
    return entries, "".join([*left, body[end:]])


def _plain(header: str) -> str:
    return _COMMENT.sub("", header)
