"""Build a candidate otherwise: with guards between its local arrays, and for other GPUs, where its text may be another
program: an operator compiles its kernels where it runs, unchecked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch, Rejected
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.source.local_arrays import GUARD_BYTES, with_guards
from kernel_lsp.toolchain.integrity.conditionals import foreign_conditions
from kernel_lsp.toolchain.integrity.masking import mask_literals
from kernel_lsp.toolchain.integrity.ptx_text import program_hash
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler

DEPOT = "__local_depot"
"""NVVM's name for the memory that holds all local arrays of a function, except those kept in registers."""
TRAP = "trap"


async def guarded(compiler: Compiler, request: BuildRequest, built: Built) -> Built | None:
    """Build the kernels with guards around their local arrays. Returns None where no array is in memory, and where the
    text does not compile with guards, e.g. for a jump over one. Resource use is reported as without guards."""
    text = with_guards(request.text) if DEPOT in built.ptx else None
    if text is None:
        return None
    found = await compiler.compile(request.model_copy(update={"text": text}))
    return found.model_copy(update={"kernels": built.kernels}) if isinstance(found, Built) else None


def said_of_guarded(outcome: CheckOutcome | None) -> Mismatch | Crashed | None:
    """Describe a failure in terms of the kernel as written. Returns None for an inconclusive outcome."""
    if isinstance(outcome, Crashed) and any(finding.code == TRAP for finding in outcome.findings):
        return Crashed(message="an index of a local array goes past its end: it writes what lies beside the array")
    if isinstance(outcome, Mismatch | Crashed):
        message = f"with {GUARD_BYTES} other bytes on both sides of each local array: {outcome.message}"
        return outcome.model_copy(update={"message": message})
    return None


OTHER_ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Architectures from Ampere to Blackwell, of data centres and of desktops."""
N_CASES_ELSEWHERE = 6
"""Cases for each other program: the user's own sizes, a few small ones and long rows."""
_QUESTION = re.compile(r"\b__CUDA_\w+|\bNV_(?:IF|DISPATCH)_\w+|\b__nvvm_reflect\w*|##|%:%:")
"""Expressions that may test the architecture outside preprocessor conditions, and those that may hide such a name."""

Failure = Mismatch | Crashed | Rejected


def may_differ(text: str) -> bool:
    """Check whether a text may be another program on another GPU."""
    return bool(_QUESTION.search(mask_literals(text)) or foreign_conditions(text))


async def other_programs(compiler: Compiler, request: BuildRequest, built: Built) -> AsyncIterator[Built]:
    """Yield the builds for other GPUs that differ from this one, each program once. A failed build is skipped: an
    operator then leaves that GPU to PyTorch."""
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
    """Add the place of another program to its failure."""
    return failure.model_copy(update={"message": f"{where}, the text is another program: {failure.message}"})
