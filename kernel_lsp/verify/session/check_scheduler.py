"""Run the checks of a built candidate, in parallel where cores are free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.verdict import Built, CheckOutcome, Rejected
from kernel_lsp.toolchain.integrity.audit import audit
from kernel_lsp.verify.cpu.executor_pool import N_LOOKS
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.progress import Progress

Look = Callable[[Progress], Awaitable[CheckOutcome | None]]


async def first_failure(looks: Sequence[Look], progress: Progress, n_at_once: int = N_LOOKS) -> CheckOutcome | None:
    """Run checks concurrently and return the first failure in their order. Results are recorded in that order, too.
    Checks behind a failure are not started, or cancelled."""
    pieces, tasks = [progress.piece() for _ in looks], list[asyncio.Task[CheckOutcome | None]]()
    try:
        for look, piece in zip(looks, pieces, strict=True):
            while len(running := [task for task in tasks if not task.done()]) >= n_at_once:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() and task.result() is not None for task in tasks):
                break
            tasks.append(asyncio.ensure_future(look(piece)))
        for task, piece in zip(tasks, pieces, strict=False):
            failure = await task
            progress.take(piece)
            if failure is not None:
                return failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return None


def audited(text: str, built: Built, progress: Progress) -> Rejected | None:
    """Reject a build whose PTX breaks a rule; warnings are recorded."""
    findings = audit(text, built) if is_on("audit") else ()
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return Rejected(message=errors[0].message, findings=findings)
    progress.findings += findings
    return None
