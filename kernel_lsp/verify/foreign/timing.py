"""Time a kernel with host code as any other, and judge the outputs of a timed call."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.config import ToleranceName
from kernel_lsp.core.verdict import CheckOutcome, Crashed, Mismatch
from kernel_lsp.verify.foreign.cases import ForeignCase, judge
from kernel_lsp.verify.foreign.process import ForeignAsker, ForeignProcess
from kernel_lsp.verify.gpu.slot import Lost
from kernel_lsp.verify.model.progress import Progress
from kernel_lsp.verify.timing.operation import OperationTimer
from kernel_lsp.verify.timing.result import NotTimed, Timed, TimingFailure, verdict_of

WRITE_DEADLINE_S = 120.0


async def time_given(
    process: ForeignProcess,
    cases: Sequence[ForeignCase],
    timer: OperationTimer,
    progress: Progress,
    folder: Path,
    device_name: str,
    tolerance: ToleranceName,
) -> CheckOutcome | None:
    """Time the kernel on the task's own inputs, in each direction; None when nothing failed. `folder` is for
    outputs."""
    for case in (case for case in cases if case.is_timed):
        asker = ForeignAsker(process, case.case.operation, case.inputs)
        operation = case.timed(progress.candidate_id)
        with progress.stage("eager, made ready"):
            await timer.offer(operation)
        match await timer.time_operation(asker, operation):
            case Timed(comparison):
                wrong = await _wrong_while_timed(process, asker, case, folder, device_name, tolerance)
                if wrong is not None:
                    return wrong
                progress.times[case.bound.name] = comparison
            case NotTimed(reason):
                progress.notes.append(f"{case.bound.name}: not timed: {reason}")
            case TimingFailure() as failure:
                return verdict_of(failure, case.bound.name, device_name)
    return None


async def _wrong_while_timed(
    process: ForeignProcess,
    asker: ForeignAsker,
    case: ForeignCase,
    folder: Path,
    device_name: str,
    tolerance: ToleranceName,
) -> Mismatch | Crashed | None:
    """Judge the outputs of a random timed call, which is drawn here after it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [tensor.name for tensor in case.bound.tensors if tensor.role == "output"]
    paths = {name: folder / f"{name}.bin" for name in names}
    request = {"subject": asker.subjects[0], "outputs": {name: str(path) for name, path in paths.items()}}
    written = await process.ask(
        "write_timed", {**request, "place": secrets.randbelow(1 << 16)}, deadline_s=WRITE_DEADLINE_S
    )
    if isinstance(written, Lost):
        return Crashed(message=f"after it was timed: {written.message}")
    judged = judge(case, paths, device_name, tolerance)
    return judged if isinstance(judged, Mismatch) else None
