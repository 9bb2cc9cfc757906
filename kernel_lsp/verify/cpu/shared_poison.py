"""Kernels that read shared memory which nothing wrote, and whose results may depend on it or not.

Such a read is no error by itself: compilers load early what they then do not use. But the NaN that the memory is full
of may also be just what a kernel ignores, as a maximum of floats does, or all ones what a minimum does not see.
"""

from __future__ import annotations

from kernel_lsp.core.verdict import Crashed, Mismatch
from kernel_lsp.verify.cpu.device import CaseRun

OTHER_POISONS = (0x7F, 0xFE, 0x00)
"""Bytes to fill shared memory with in place of all ones: a huge float that is a large integer, with and without a sign;
a float far below zero; zeros."""
N_CASES = 2
"""The smallest that had such reads are run again."""
UNWRITTEN = "uninitialized-read"


def reads_unwritten(run: CaseRun) -> bool:
    """Whether a kernel read shared memory that nothing wrote."""
    return any(finding.code == UNWRITTEN for finding in run.findings)


def because_of_shared(outcome: Mismatch | Crashed, first: CaseRun) -> Mismatch | Crashed:
    """The outcome of a case with other bytes in shared memory, said to be so; `first` was right."""
    line = next(finding.line for finding in first.findings if finding.code == UNWRITTEN)
    place = f" at line {line}" if line is not None else ""
    message = f"it reads shared memory that nothing has written{place}, and the result depends on it: {outcome.message}"
    return outcome.model_copy(update={"message": message})
