"""The integrity gate: what a candidate may not do, read from its text and from its PTX before it runs.

A finding of severity error rejects the candidate. The rules are over the text for what the compiler would open, and
over the PTX, after all macros and templates, for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.toolchain.masking import kernel_at_line, mask_comments

SOURCE = "integrity"
ALLOWED_HEADER_FOLDERS = ("cub/", "cuda/", "cooperative_groups/", "nv/", "thrust/", "crt/")
ALLOWED_HEADERS = frozenset(
    (
        *("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "mma.h", "cooperative_groups.h"),
        *("cuda_runtime.h", "cuda_pipeline.h", "cuda_awbarrier.h", "cuComplex.h", "math_constants.h", "vector_types.h"),
        *("vector_functions.h", "device_launch_parameters.h", "device_functions.h", "sm_20_intrinsics.h", "cuda.h"),
        *("stdint.h", "cstdint", "stddef.h", "cstddef", "math.h", "cmath", "float.h", "cfloat", "limits.h", "climits"),
        *("limits", "type_traits", "utility", "array", "tuple", "assert.h", "cassert", "stdio.h", "cstdio", "string.h"),
        *("cstring", "stdlib.h", "cstdlib", "algorithm", "initializer_list"),
    )
)

_DIRECTIVE = re.compile(
    r"^[ \t\v\f]*(?:\#|%:|\?\?=)[ \t\v\f]*(?P<name>include_next|include|import|embed)\b(?P<rest>[^\n]*)", re.MULTILINE
)
_OPERAND = re.compile(r'^[ \t\v\f]*(?:<(?P<angle>[^>"\n]+)>|"(?P<quoted>[^"\n]+)")')


def source_findings(text: str, file_name: str = "kernel.cu") -> tuple[Finding, ...]:
    """What the text would make the compiler read: anything but the toolkit's own headers is an error."""
    code = mask_comments(_splice(text))
    return tuple(_include_findings(code, text, file_name))


def _include_findings(code: str, text: str, file_name: str) -> Iterator[Finding]:
    for match in _DIRECTIVE.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        operand = _OPERAND.match(match["rest"])
        name = (operand["angle"] or operand["quoted"]) if operand else match["rest"].strip()
        if operand and match["name"] == "include" and is_allowed_header(name):
            continue
        yield Finding(
            code="include-outside-toolkit",
            severity=Severity.ERROR,
            message=f"a kernel includes only headers of the CUDA toolkit, by name, and '{name}' is not one of them",
            source=SOURCE,
            file=file_name,
            line=line,
            kernel=kernel_at_line(text, line),
        )


def is_allowed_header(name: str) -> bool:
    """Whether `name` is a header of the toolkit, or one of C and C++ that we give to the compiler."""
    parts = name.split("/")
    if ".." in parts or "." in parts or name.startswith("/"):
        return False
    return name in ALLOWED_HEADERS or name.startswith(ALLOWED_HEADER_FOLDERS)


def _splice(text: str) -> str:
    """Line splices resolved, with the line count kept: the directive moves to the line it starts on."""
    lines = text.split("\n")
    spliced: list[str] = []
    index = 0
    while index < len(lines):
        line, n_joined = lines[index], 0
        while _continues(line) and index + n_joined + 1 < len(lines):
            n_joined += 1
            line = line.rstrip()[: -1 if line.rstrip().endswith("\\") else -3] + lines[index + n_joined]
        spliced += [line] + [""] * n_joined
        index += n_joined + 1
    return "\n".join(spliced)


def _continues(line: str) -> bool:
    stripped = line.rstrip()
    return stripped.endswith("\\") or stripped.endswith("??/")
