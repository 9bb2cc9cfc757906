"""Other GPUs than the one that a candidate is checked for, on which its text may be another program.

An operator compiles its kernels where it runs: a text that asks for the architecture would run as nobody checked it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from kernel_lsp.core.verdict import Built, Crashed, Mismatch, Rejected
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.integrity.conditionals import foreign_conditions
from kernel_lsp.toolchain.integrity.masking import mask_literals
from kernel_lsp.toolchain.integrity.ptx_identity import program_hash

OTHER_ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""From Ampere to Blackwell, the data centre's and the desk's."""
N_CASES_ELSEWHERE = 6
"""Of each other program: the user's own sizes, a few small ones and long rows."""
_QUESTION = re.compile(r"\b__CUDA_\w+|\bNV_(?:IF|DISPATCH)_\w+|\b__nvvm_reflect\w*|##|%:%:")
"""What may ask for the architecture outside of conditions of the preprocessor, and what may hide such a name."""

Failure = Mismatch | Crashed | Rejected


def may_differ(text: str) -> bool:
    """Whether a text may be another program on another GPU."""
    return bool(_QUESTION.search(mask_literals(text)) or foreign_conditions(text))


async def other_programs(compiler: Compiler, request: BuildRequest, built: Built) -> AsyncIterator[Built]:
    """What the text of a request is on other GPUs, where it is something else, each program once. Where it does not
    compile no kernel runs: an operator leaves such a GPU to PyTorch."""
    seen = {program_hash(built.ptx)}
    for architecture in OTHER_ARCHITECTURES if may_differ(request.text) else ():
        if architecture == request.architecture:
            continue
        try:
            other = await compiler.compile(request.model_copy(update={"architecture": architecture}))
        except EnvironmentProblem:  # this NVRTC does not know it
            continue
        if isinstance(other, Built) and program_hash(other.ptx) not in seen:
            seen.add(program_hash(other.ptx))
            yield other


def said_of(failure: Failure, where: str) -> Failure:
    """The failure of another program, with where it is one."""
    return failure.model_copy(update={"message": f"{where}, the text is another program: {failure.message}"})
