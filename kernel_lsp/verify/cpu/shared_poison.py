"""Detect results that depend on uninitialised shared memory.

Such a read is no error by itself: compilers load early and discard. But the poison may be just what a kernel ignores: a
floating maximum drops NaN, and a minimum drops all ones.
"""

from __future__ import annotations

from kernel_lsp.core.verdict import Crashed, Mismatch
from kernel_lsp.verify.cpu.device import CaseRun

OTHER_POISONS = (0x7F, 0xFE, 0x00)
"""Bytes that fill shared memory in place of all ones: a huge float that is also a large integer, with and without sign;
a float far below zero; zeros."""
N_CASES = 2
"""Cases with such reads that are run again, the smallest first."""
UNWRITTEN = "uninitialized-read"


def reads_unwritten(run: CaseRun) -> bool:
    """Check whether a kernel read uninitialised shared memory."""
    return any(finding.code == UNWRITTEN for finding in run.findings)


def because_of_shared(outcome: Mismatch | Crashed, first: CaseRun) -> Mismatch | Crashed:
    """Attribute the failure of a case to the other bytes in shared memory; `first` was correct."""
    line = next(finding.line for finding in first.findings if finding.code == UNWRITTEN)
    place = f" at line {line}" if line is not None else ""
    message = f"it reads shared memory that nothing has written{place}, and the result depends on it: {outcome.message}"
    return outcome.model_copy(update={"message": message})
