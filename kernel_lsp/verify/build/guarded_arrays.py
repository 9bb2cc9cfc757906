"""Detect overflows between local arrays that share one piece of memory. The kernel is compiled again with guards
between the arrays, and runs a few small cases."""

from __future__ import annotations

from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch
from kernel_lsp.source.local_arrays import GUARD_BYTES, with_guards
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
