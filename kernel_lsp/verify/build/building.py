"""Build requests of a candidate, and builds that start before its task is known. A build needs the text, its plan's
kernels and the GPU; the executor needs the build."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import BoundOperation, KernelSignature, Launch, LaunchPlan, Operation
from kernel_lsp.core.verdict import Built
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.plan.kernel_names import find_signature, kernel_name, name_expression
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.integrity.audit import audit
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.verify.devices.device import KernelBuild
from kernel_lsp.verify.gpu.device import GpuDevice
from kernel_lsp.verify.model.resolved_kernel import Prepared, kernel_names

COMPILED_AS = "kernel.cu"
"""File name of a candidate's text while it is compiled (`BuildRequest.file_name`), and so in the PTX."""


@dataclass(frozen=True)
class Module:
    """A PTX text and its file name."""

    ptx: str
    file_name: str


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


def module_of(built: Built, plan: LaunchPlan) -> Module:
    """Return the module that executors load."""
    return Module(built.ptx, f"{plan.forward.name}.cu")


def kernel_build(candidate_id: str, built: Built, plan: LaunchPlan) -> KernelBuild:
    """Return the build that devices prepare."""
    return KernelBuild(candidate_id, built, module_of(built, plan).file_name)


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
) -> Module | None:
    """Build a text as its evaluation will, so that the evaluation hits the compiler's cache. Returns None when kernel
    names depend on sizes, and for a text that the evaluation refuses: it then reports the reason."""
    names = all_names(plan.operations, kernel_signatures(text))
    if names is None:
        return None
    built = await compiler.compile(request_of(text, names, gpu, device))
    if not isinstance(built, Built) or any(found.severity is Severity.ERROR for found in audit(text, built)):
        return None
    return module_of(built, plan)


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
