"""Check one kernel file against its task."""

from __future__ import annotations

import difflib
from contextlib import AsyncExitStack
from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import Estimate, EstimatedBaseline, LineEstimate
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.plan import LaunchPlan, TensorParameter
from kernel_lsp.core.task import InputConfiguration, TargetInput, TargetSource, TensorInput
from kernel_lsp.core.verdict import BuildFailed, Unsupported, Verdict
from kernel_lsp.errors import UserError
from kernel_lsp.plan.parser import parse
from kernel_lsp.source.extension import foreign_source
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.foreign.check_foreign import check_foreign
from kernel_lsp.verify.model.cases import StageTimes
from kernel_lsp.verify.session.pipeline import DEVICE_NAME
from kernel_lsp.verify.session.plain_build import (
    check_plain,
    check_pytorch,
    check_without_task,
    is_plain,
    planned_text,
    static_findings,
)
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.start import SessionStart

MAX_KERNEL_BYTES = 4 << 20
KERNEL_SUFFIXES = (".cu", ".cuh")


async def check_kernel(
    kernel: Path, target: str | None, directory: Path, settings: Settings, start: SessionStart | None = None
) -> Verdict:
    """Return the full verdict on a `.cu` file, or on a file with host code of its own (`foreign`).

    The task is `target`, or the file's `task:` line. `start` is an already started session, if any.

    Raises UserError for a file that cannot be read or has no task, TargetError when the task cannot be captured.
    """
    text = read_kernel(kernel)
    foreign = foreign_source(kernel.name, text)
    if foreign is not None and target is None:
        return await check_without_task(kernel, text, foreign.kind, settings)
    if foreign is not None:
        asked = find_task(kernel, None, target, directory)
        verdict = await check_foreign(kernel, text, foreign, asked, settings, start)
        static = () if kernel.suffix == ".py" else static_findings(text)  # the rules read CUDA
        return verdict.model_copy(update={"findings": (*verdict.findings, *static)})
    parsed = parse(text)
    candidate = Candidate(text=planned_text(text), origin=Origin(proposer="user", description=str(kernel)))
    if kernel.suffix == ".py":
        return check_pytorch(text)
    if is_plain(kernel.name, text):
        return await check_plain(kernel, text, settings)
    if parsed.plan is None:
        return Verdict(candidate_id=candidate.id, device=DEVICE_NAME, outcome=BuildFailed(findings=parsed.findings))
    source = find_planned_task(kernel, parsed.plan, target, directory)
    times = StageTimes()
    async with AsyncExitStack() as stack:
        with times.stage("session"):
            session = await stack.enter_async_context(Session(settings, start))
            await session.gpu_index()
        session.begin(candidate.text, parsed.plan)
        with times.stage("capture"):
            with_backward = parsed.plan.backward is not None
            task = await session.capture(source, with_backward=with_backward, for_device=True)
        with times.stage("verifier"):
            verifier = await session.verifier(source, task)
        verdict = await verifier.verify(candidate, "full")
    return verdict.model_copy(update={"stages_s": {**times.stages_s, **verdict.stages_s}})


def read_kernel(kernel: Path) -> str:
    """Return the text of a kernel file. Raises UserError when it cannot be read."""
    try:
        if kernel.stat().st_size > MAX_KERNEL_BYTES:
            raise UserError(f"larger than {MAX_KERNEL_BYTES >> 20} MiB", file=str(kernel), next_step="name a .cu file")
        return kernel.read_text(encoding="utf-8-sig")  # compilers ignore a byte order mark
    except UnicodeDecodeError:
        raise UserError("not a text file in UTF-8", file=str(kernel), next_step="name a .cu file") from None
    except OSError as error:
        raise UserError(error.strerror or str(error), file=str(kernel), next_step=_suggest_kernel(kernel)) from None


def _suggest_kernel(kernel: Path) -> str:
    """Return the `.cu` files in the folder, and in those below, that have a similar name. A target's own is one."""
    folder = kernel.parent
    _, is_target, symbol = kernel.name.partition("::")
    names = {str(found.relative_to(folder)): found.name for glob in ("*.cu", "*/*.cu") for found in folder.glob(glob)}
    wanted = f"{symbol.lower()}.cu" if is_target else kernel.name
    near = difflib.get_close_matches(wanted, [*names.values()], n=3, cutoff=0.7)
    listed = [str(folder / path) for path, name in sorted(names.items()) if name in near]
    if is_target:
        return f"this is a target: name its kernel, {' or '.join(listed[:3]) or 'a .cu file'}"
    return f"did you mean {' or '.join(listed[:3])}?" if listed else "name a .cu file"


def find_task(kernel: Path, task_line: str | None, target: str | None, directory: Path) -> TargetSource:
    """Return the task of a kernel: `target` against `directory`, else its `task:` line against the kernel's own folder.

    Raises UserError without either.
    """
    if target is not None:
        return read_target(target, directory)
    if task_line is not None:
        return read_target(task_line, kernel.absolute().parent)
    raise UserError(
        "nothing says what this kernel computes",
        file=str(kernel),
        line=1,
        next_step="add `// task: model.py::symbol` to the plan, or give --task model.py::symbol",
    )


def find_planned_task(kernel: Path, plan: LaunchPlan, target: str | None, directory: Path) -> TargetSource:
    """Return the task of a kernel with a plan. Of recorded inputs it takes those that the plan was written for: a later
    recording may be of another program.

    Raises UserError as `find_task` does, and where no recorded inputs fit.
    """
    source = find_task(kernel, plan.task, target, directory)
    if not source.inputs_are_recorded or source.inputs is None or _fits(source.inputs, plan):
        return source
    other = next((each for each in source.configurations if _fits(each.inputs, plan)), None)
    if other is None:
        raise UserError(
            f"the recorded inputs of '{source.symbol}' have other dims or dtypes than the kernel's plan",
            file=str(kernel),
            line=plan.forward.span.line,
            next_step=f"record the run that this kernel is for, or write its inputs there: {_example_pragma(plan)}",
        )
    usual = InputConfiguration(name="recorded", inputs=source.inputs, init_arguments=source.init_arguments)
    rest = (usual, *(each for each in source.configurations if each is not other))
    chosen = {"inputs": other.inputs, "init_arguments": other.init_arguments, "configurations": rest}
    return source.model_copy(update=chosen)


def _example_pragma(plan: LaunchPlan) -> str:
    tensors = [each for each in plan.forward.parameters if isinstance(each, TensorParameter)]
    return f"# kernel-lsp: {tensors[0].name}={tensors[0].dtype}[...]" if tensors else "# kernel-lsp: ..."


def _fits(inputs: tuple[TargetInput, ...], plan: LaunchPlan) -> bool:
    tensors = [each for each in plan.forward.parameters if isinstance(each, TensorParameter)]
    planned = {each.name: (each.dtype, len(each.dims)) for each in tensors}
    given = [each for each in inputs if isinstance(each, TensorInput)]
    return all(planned.get(each.name, (each.dtype, len(each.shape))) == (each.dtype, len(each.shape)) for each in given)


class EstimateReport(Noun):
    """Estimates by subject: ``eager`` and ``compile``, or the kernel's operations, alone and in PyTorch. `lines` are
    those of a PyTorch target, costliest first, and `floor_us` is its speed of light in microseconds."""

    schema_version: int = SCHEMA_VERSION
    target: str
    estimates: dict[str, Estimate]
    floor_us: float | None = None
    lines: tuple[LineEstimate, ...] = ()
    notes: tuple[str, ...] = ()


async def estimate_kernel(kernel: Path, directory: Path, settings: Settings) -> EstimateReport:
    """Return the times of a `.cu` file and of PyTorch. Raises UserError as reading does."""
    verdict = await check_kernel(kernel, None, directory, settings)
    estimates: dict[str, Estimate] = {}
    for name, comparison in verdict.times.items():
        assert isinstance(comparison.ours, Estimate)
        estimates[name] = comparison.ours
        for each in comparison.baselines:
            assert isinstance(each, EstimatedBaseline)
            estimates[f"{name} in {each.name}"] = each.estimate
    notes = () if verdict.is_correct else (_why_incorrect(verdict),)
    return EstimateReport(target=str(kernel), estimates=estimates, notes=(*notes, *verdict.notes))


def _why_incorrect(verdict: Verdict) -> str:
    if isinstance(verdict.outcome, Unsupported):
        return f"no estimate: {verdict.outcome.message}"
    return f"the kernel is incorrect: {verdict.outcome.kind}"
