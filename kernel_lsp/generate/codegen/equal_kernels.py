"""Find kernels that differ in names alone: the layers of a deep network then share one function, compiled once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.generate.codegen.kernel import RenderedKernel

_TYPE = (
    r"(?:(?:unsigned |signed )?(?:long long|int|char|short)|float|double|bool|unsigned|half|__half|__nv_bfloat16"
    r"|u?int(?:8|16|32|64)_t|Pack<[^;={}()]*?>)"
)
_DECLARED = re.compile(rf"\b{_TYPE}\s*[*&]?\s*(?:__restrict__\s+)?([A-Za-z_]\w*)\s*(?=[=;,\[)({{]|$)", re.M)
"""The name that a declaration introduces. One that is missed keeps its spelling, so that fewer kernels match."""
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_COMMENT = re.compile(r"//.*")


def representatives(kernels: Sequence[RenderedKernel], known: dict[str, str]) -> dict[str, str]:
    """Return for each kernel's name that of the first kernel with the same code, `known` ones included; `known` maps
    codes to names, and is extended."""
    return {kernel.name: known.setdefault(code_of(kernel), kernel.name) for kernel in kernels}


def distinct(kernels: Sequence[RenderedKernel], names: dict[str, str]) -> tuple[RenderedKernel, ...]:
    """Return the kernels that stand for themselves, and say of those with several launches that names are the first
    one's."""
    launched = list(names.values())
    note = "// Several launches share it; its names are those of the first.\n"
    return tuple(
        replace(kernel, text=_noted(kernel.text, note)) if launched.count(kernel.name) > 1 else kernel
        for kernel in kernels
        if names[kernel.name] == kernel.name
    )


def code_of(kernel: RenderedKernel) -> str:
    """Return the kernel's code, without comments, and the shapes of its parameters, each declared name replaced by its
    rank."""
    code = _COMMENT.sub("", kernel.text)
    shapes = "\n".join(parameter.comment for parameter in kernel.source.parameters)
    own = {kernel.name, *_DECLARED.findall(code)}
    rank: dict[str, int] = {}

    def ranked(match: re.Match[str]) -> str:
        word = match.group()
        return f"#{rank.setdefault(word, len(rank))}" if word in own else word

    return " ".join([*_WORD.sub(ranked, f"{code}\n{shapes}").split(), str(kernel.attributes)])


def _noted(text: str, note: str) -> str:
    head, place, rest = text.partition("__global__")
    return head + note + place + rest
