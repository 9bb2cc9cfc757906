"""Build requests of a candidate, and builds that start before its task is known. A build needs the text, its plan's
kernels and the GPU; the executor needs the build."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import BoundOperation, KernelSignature, Launch, LaunchPlan, Operation
from kernel_lsp.core.verdict import Built, CheckOutcome, Crashed, Mismatch, Rejected, Stalled, TimedOut
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.plan.kernel_names import find_signature, kernel_name, name_expression
from kernel_lsp.ptx.executor import TRY_AGAIN
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.source.local_arrays import GUARD_BYTES, with_guards
from kernel_lsp.toolchain.integrity.audit import audit
from kernel_lsp.toolchain.integrity.conditionals import foreign_conditions
from kernel_lsp.toolchain.integrity.masking import mask_literals
from kernel_lsp.toolchain.integrity.ptx_text import COMPILED_AS, program_hash
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.model.resolved_kernel import Prepared, kernel_names

DEPOT = "__local_depot"
"""NVVM's name for the memory that holds all local arrays of a function, except those kept in registers."""
TRAP = "trap"


def request_of(
    text: str, names: set[str], gpu: GpuSpec, device: GpuDevice | None, file_name: str = COMPILED_AS
) -> BuildRequest:
    """Return the build for the GPU that measures, else for the GPU that estimates are for."""
    return BuildRequest(
        text=text,
        file_name=file_name,
        name_expressions=tuple(sorted(names)),
        architecture=gpu.architecture.name if device is None else device.facts.architecture,
    )


def candidate_request(
    prepared: Prepared,
    operations: Sequence[BoundOperation],
    gpu: GpuSpec,
    device: GpuDevice | None,
    file_name: str = COMPILED_AS,
) -> BuildRequest:
    """Return the build with all kernels that the plan may launch. Where their names depend on sizes, it has those that
    the bound `operations` launch."""
    names = all_names(map(prepared.operation, prepared.directions), prepared.signatures)
    if names is None:
        names = set().union(*(kernel_names(operation) for operation in operations))
    return request_of(prepared.text, names, gpu, device, file_name)


def names_without_sizes(plan: LaunchPlan, signatures: Sequence[KernelSignature]) -> set[str]:
    """Return the kernels that a plan may launch, except those whose names depend on a size."""
    return {name for name in _names(plan.operations, signatures) if name is not None}


def all_names(operations: Iterable[Operation], signatures: Sequence[KernelSignature]) -> set[str] | None:
    """Return the kernels that operations may launch, or None where some name depends on a size."""
    names = _names(operations, signatures)
    known = {name for name in names if name is not None}
    return known if len(known) == len(names) else None


async def build_ahead(
    compiler: Compiler, text: str, plan: LaunchPlan, gpu: GpuSpec, device: GpuDevice | None
) -> str | None:
    """Build a text as its evaluation will, so that the evaluation hits the compiler's cache, and return its PTX. None
    when kernel names depend on sizes, and for a text that the evaluation refuses: it then reports the reason."""
    names = all_names(plan.operations, kernel_signatures(text))
    if names is None:
        return None
    built = await compiler.compile(request_of(text, names, gpu, device))
    if not isinstance(built, Built) or any(found.severity is Severity.ERROR for found in audit(text, built)):
        return None
    return built.ptx


def _names(operations: Iterable[Operation], signatures: Sequence[KernelSignature]) -> set[str | None]:
    """Return kernel names, with None among them where some name depends on a size."""
    return {
        _name_without_sizes(step, operation, signatures)
        for operation in operations
        for step in operation.steps
        if isinstance(step, Launch)
    }


def _name_without_sizes(launch: Launch, operation: Operation, signatures: Sequence[KernelSignature]) -> str | None:
    signature = find_signature(launch, signatures, {tensor.name: tensor.dtype for tensor in operation.tensors})
    try:
        return kernel_name(launch, {}) if signature is None else name_expression(launch, {}, signature, signatures)
    except ExpressionError:
        return None


async def guarded(compiler: Compiler, request: BuildRequest, built: Built) -> Built | Stalled | None:
    """Build the kernels with guards around their local arrays. Stalled where that times out. None where no array is in
    memory, and where the text does not compile with guards, e.g. for a jump over one. Resource use is reported as
    without guards."""
    text = with_guards(request.text) if DEPOT in built.ptx else None
    if text is None:
        return None
    found = await compiler.compile(request.model_copy(update={"text": text}))
    if isinstance(found, TimedOut):
        return Stalled(message=f"with guards around local arrays: {found.message}; {TRY_AGAIN}")
    return found.model_copy(update={"kernels": built.kernels}) if isinstance(found, Built) else None


def said_of_guarded(outcome: CheckOutcome | None) -> Mismatch | Crashed | Stalled | None:
    """Describe a failure in terms of the kernel as written. Returns None for an inconclusive outcome."""
    if isinstance(outcome, Stalled):
        return outcome
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

_PLAIN_QUESTION = re.compile(
    r"^[ \t]*#[ \t]*if[ \t]+__CUDA_ARCH__[ \t]*(>=|<=|>|<|==|!=)[ \t]*([1-9]\d*)[ \t]*$", re.MULTILINE
)
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    **{">=": operator.ge, "<=": operator.le, ">": operator.gt},
    **{"<": operator.lt, "==": operator.eq, "!=": operator.ne},
}

Failure = Mismatch | Crashed | Rejected | TimedOut | Stalled


def may_differ(text: str) -> bool:
    """Check whether a text may be another program on another GPU."""
    return bool(_QUESTION.search(mask_literals(text)) or foreign_conditions(text))


async def other_programs(
    compiler: Compiler, request: BuildRequest, built: Built
) -> AsyncGenerator[Built | Stalled, None]:
    """Yield the builds for other GPUs that differ from this one, each program once. They are made side by side: a
    network takes 15 s each. A failed build is skipped: an operator then leaves that GPU to PyTorch. Stalled for one
    that times out, since it may succeed there."""
    architectures = other_architectures(request.text, request.architecture) if may_differ(request.text) else []
    builds = [
        asyncio.create_task(compiler.compile(request.model_copy(update={"architecture": name})))
        for name in architectures
    ]
    seen = {program_hash(built.ptx)}
    try:
        for build in builds:
            try:
                other = await build
            except EnvironmentProblem:  # this NVRTC does not know it
                continue
            if isinstance(other, TimedOut):
                yield Stalled(message=f"compiled for other GPUs: {other.message}; {TRY_AGAIN}")
            if isinstance(other, Built) and program_hash(other.ptx) not in seen:
                seen.add(program_hash(other.ptx))
                yield other
    finally:
        for build in builds:
            build.cancel()
        await asyncio.gather(*builds, return_exceptions=True)


def other_architectures(text: str, own: str) -> list[str]:
    """Return the architectures to compile for: not those for which all conditions of the text have the truth that they
    have for an earlier one. Where it asks anything but ``#if __CUDA_ARCH__ >= 800``, they are all."""
    others = [name for name in OTHER_ARCHITECTURES if name != own]
    code = mask_literals(text)
    asked = _PLAIN_QUESTION.findall(code)
    if len(asked) != len(_QUESTION.findall(code)) or len(asked) != len(foreign_conditions(text)):
        return others
    answers = {name: tuple(_is_true(name, *each) for each in asked) for name in (own, *others)}
    return [name for name in others if list(answers.values()).index(answers[name]) == list(answers).index(name)]


def _is_true(architecture: str, comparison: str, number: str) -> bool:
    """Evaluate a condition on ``__CUDA_ARCH__``, which is 900 for ``sm_90`` and ``sm_90a``."""
    return COMPARISONS[comparison](10 * int(architecture.removeprefix("sm_").rstrip("af")), int(number))


def said_of(failure: Failure, where: str) -> Failure:
    """Add the place of another program to its failure."""
    return failure.model_copy(update={"message": f"{where}, the text is another program: {failure.message}"})
