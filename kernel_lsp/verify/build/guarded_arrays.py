"""Whether a kernel keeps to each of its local arrays, where it has several in one piece of memory: it is compiled once
more with guards between them, and a few small cases are run."""

from __future__ import annotations

from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch
from kernel_lsp.source.local_arrays import GUARD_BYTES, with_guards
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler

DEPOT = "__local_depot"
"""What NVVM calls the piece that all local arrays of a function are in. Arrays that it keeps in registers are not."""
TRAP = "trap"


async def guarded(compiler: Compiler, request: BuildRequest, built: Built) -> Built | None:
    """The kernels with guards around their local arrays; None where none of them is in memory, and where a text does
    not compile with guards, e.g. for a jump over one. What a GPU has room for is as without them."""
    text = with_guards(request.text) if DEPOT in built.ptx else None
    if text is None:
        return None
    found = await compiler.compile(request.model_copy(update={"text": text}))
    return found.model_copy(update={"kernels": built.kernels}) if isinstance(found, Built) else None


def said_of_guarded(outcome: CheckOutcome | None) -> Mismatch | Crashed | None:
    """What is wrong, in words about the kernel as it was written; None for what says nothing of it."""
    if isinstance(outcome, Crashed) and any(finding.code == TRAP for finding in outcome.findings):
        return Crashed(message="an index of a local array goes past its end: it writes what lies beside the array")
    if isinstance(outcome, Mismatch | Crashed):
        message = f"with {GUARD_BYTES} other bytes on both sides of each local array: {outcome.message}"
        return outcome.model_copy(update={"message": message})
    return None
