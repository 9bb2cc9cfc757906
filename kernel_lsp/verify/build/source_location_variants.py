"""Build a candidate in other files and at other lines, for a text that reads its source location.

An operator compiles its kernels from a string, a package from a file of its own, and a text may be pasted behind other
code. `__FILE__` and `__LINE__` may occur in a message, but must not decide a result. NVRTC has no `__COUNTER__`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.integrity.line_directives import PLACE_NAMES
from kernel_lsp.toolchain.integrity.masking import mask_literals
from kernel_lsp.toolchain.integrity.ptx_identity import program_hash

FOLDERS = ("/home/somebody/projects/model/kernels", f"/srv/{'shared/' * 14}kernels", f"/data/{'of_somebody/' * 18}k")
"""Folders of an operator's file: paths of about 60, 120 and 250 characters with its name."""
OTHER_FILES = (
    *("cuda.cu", "main.cu", "/home/user/kernels/of/an/operator.cu", "k.cu", "default_program"),
    *(f"{'stuvwxyzabcdefghijklmnopqr'[:n]}.cu" for n in range(2, 22)),
)
"""File names of usual lengths: PyTorch's `load_inline` writes ``cuda.cu``, NVRTC uses ``default_program``. Each name
has another number of lines above the text, every fourth a hundred times as many. A compile takes 0.1 s."""
FAR_LINES = 100
LONG_COMPILE_S = 1.0
N_FILES_OF_LONG_COMPILES = 4
"""Maximum files for texts with large headers (CUB, libcu++): more would compile for a minute."""
MAX_PROGRAMS = 6
"""Maximum programs that are run: a text that prints its location is another program at each."""
_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_OPERATION = re.compile(r"^[ \t]*//[ \t]*op:[ \t]*(\w+)", re.MULTILINE)
_DEPTH = "__INCLUDE_LEVEL__"
_QUESTION = re.compile(rf"\b(?:{'|'.join((*PLACE_NAMES, _DEPTH))}|source_location)\b")


def asks_where_it_stands(text: str) -> bool:
    """Check whether the text reads its file, its line, or whether another file includes it."""
    return _QUESTION.search(mask_literals(_SPLICE.sub("", text))) is not None


async def programs_of_other_places(
    compiler: Compiler, request: BuildRequest, built: Built
) -> AsyncIterator[tuple[str, Built]]:
    """Yield a few distinct programs of the text in other files and at other lines, each with its location in words."""
    seen = {program_hash(built.ptx)}
    operation = _OPERATION.search(request.text)
    own = [f"{folder}/{operation[1] if operation else 'operator'}.cu" for folder in FOLDERS]
    files = [*own, *OTHER_FILES][: None if built.compile_s < LONG_COMPILE_S else N_FILES_OF_LONG_COMPILES]
    for n, name in enumerate(files if asks_where_it_stands(request.text) else (), start=1):
        n_lines = n if n % 4 else n * FAR_LINES
        moved = await compiler.compile(moved_text(request, name, n_lines))
        if isinstance(moved, Built) and program_hash(moved.ptx) not in seen:
            seen.add(program_hash(moved.ptx))
            yield f"compiled from a file '{name}' with {n_lines} more lines before it", moved
            if len(seen) > MAX_PROGRAMS:
                return


def moved_text(request: BuildRequest, name: str, n_lines: int) -> BuildRequest:
    """Return the request for an included file of that name, with `n_lines` lines before its text."""
    text = re.sub(rf"\b{_DEPTH}\b", "1", request.text.removeprefix("\ufeff"))
    return request.model_copy(update={"text": "\n" * n_lines + text, "file_name": name})
