"""Messages with the process of one of several GPUs, one JSON line each.

To it: a `Start`, then a `Request` for each verdict. From it: a `Said` once the GPU is open, and one for each request,
as they end.
"""

from __future__ import annotations

from kernel_lsp import errors
from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import TargetSource
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import InternalError, KernelLspError
from kernel_lsp.verify.model.cases import Depth


class Start(Noun):
    """The task, and the session's settings, whose device is this process's GPU."""

    settings: Settings
    source: TargetSource
    with_backward: bool
    full_wait_s: float = 0.0
    peers: tuple[str, ...] = ()
    n_slots: int


class Request(Noun):
    """A verdict to reach; without a candidate the one of that number is cancelled."""

    number: int
    candidate: Candidate | None = None
    depth: Depth = "full"


class Problem(Noun):
    """An exception of ours."""

    kind: str
    message: str
    file: str | None = None
    line: int | None = None
    next_step: str = ""

    @classmethod
    def of(cls, error: KernelLspError) -> Problem:
        return cls(
            kind=type(error).__name__,
            message=error.message,
            file=error.file,
            line=error.line,
            next_step=error.next_step,
        )

    def error(self) -> KernelLspError:
        """Return the exception."""
        kind = getattr(errors, self.kind, InternalError)
        return kind(self.message, file=self.file, line=self.line, next_step=self.next_step)  # type: ignore[no-any-return]  # by name


class Said(Noun):
    """The name of the open GPU, a verdict, or a problem: of the request of that number, else of the whole process."""

    gpu: str = ""
    number: int | None = None
    verdict: Verdict | None = None
    problem: Problem | None = None
