"""List the kernels that a package must hold. A template whose arguments are dims is compiled for each configuration of
the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernel_lsp.core.expression import Expression, ExpressionError, Number, evaluate, free_names
from kernel_lsp.core.plan import KernelSignature, Launch, LaunchPlan, Operation, ScalarParameter, TensorParameter
from kernel_lsp.core.task import Configuration, Task, TaskScalar
from kernel_lsp.errors import PlanError
from kernel_lsp.export.package.cpp_text import cpp_string
from kernel_lsp.export.python.operator_text import OperatorText
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.kernel_names import kernel_name

GRADIENT_PREFIX = "grad_"
_KERNELS_HEADER = """\
// The kernels by their place in the launch plan's table, as the CUDA runtime knows them.
#pragma once

namespace kernels {{

extern const void* const all[{count}];
extern const char* const names[{count}];

}}  // namespace kernels
"""


@dataclass(frozen=True)
class KernelInstance:
    """A kernel with all its template arguments, and the values for which a launch selects it; no values select it
    always."""

    name: str
    conditions: tuple[tuple[Expression, Number], ...] = ()


def instances_of(
    launch: Launch, signature: KernelSignature, values: Sequence[Mapping[str, Number]]
) -> tuple[KernelInstance, ...]:
    """Return the kernels that the launch needs: one, or one for each distinct set of template arguments in `values`."""
    dependent = [a for a in launch.template_arguments if isinstance(a, Expression) and free_names(a)]
    if not dependent:
        return (KernelInstance(_named(launch, signature, {})),)
    found: dict[str, KernelInstance] = {}
    for each in values:
        try:
            if launch.condition is None or evaluate(launch.condition, each):
                conditions = tuple((argument, evaluate(argument, each)) for argument in dependent)
                name = _named(launch, signature, each)
                found.setdefault(name, KernelInstance(name, conditions))
        except ExpressionError:
            continue
    return tuple(found.values())


def configured_values(
    task: Task, plan: LaunchPlan, operation: Operation, signatures: Sequence[KernelSignature]
) -> list[dict[str, Number]]:
    """Dims and scalars of the operation in each of the task's configurations that is inside its contract."""
    found = []
    for configuration in task.configurations:
        try:
            shapes = _shapes(task, plan, configuration, signatures)
            scalars = scalars_of(task, operation)
            wanted = {p.name: shapes[p.name] for p in operation.parameters if isinstance(p, TensorParameter)}
            found.append({**bind(operation, wanted, scalars, signatures).dims, **scalars})
        except (PlanError, KeyError):  # outside the contract, or without one of the tensors
            continue
    return found


def _named(launch: Launch, signature: KernelSignature, values: Mapping[str, Number]) -> str:
    name = kernel_name(launch, values)
    return f"{name}<>" if signature.template_parameters and not launch.template_arguments else name


def _shapes(
    task: Task, plan: LaunchPlan, configuration: Configuration, signatures: Sequence[KernelSignature]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the task, and of the gradients of its results."""
    forward = plan.forward
    wanted = {p.name: configuration.shapes[p.name] for p in forward.parameters if isinstance(p, TensorParameter)}
    bound = bind(forward, wanted, scalars_of(task, forward), signatures)
    results = {f"{GRADIENT_PREFIX}{result.name}": bound.tensor(result.name).shape for result in forward.results}
    return {**configuration.shapes, **results}


def scalars_of(task: Task, operation: Operation) -> dict[str, Number]:
    """Return the numbers that an operation takes, as they were captured."""
    values = {argument.name: argument.value for argument in task.arguments if isinstance(argument, TaskScalar)}
    return {p.name: values[p.name] for p in operation.parameters if isinstance(p, ScalarParameter)}


@dataclass
class KernelTable:
    """The kernels of all launches by name expression, without duplicates."""

    names: list[str] = field(default_factory=list)

    def index(self, name: str) -> int:
        """Return the kernel's index in the table. Adds the kernel if it is missing."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def kernels_header(table: KernelTable) -> str:
    """Print ``kernels.h``."""
    return _KERNELS_HEADER.format(count=max(len(table.names), 1))


def kernels_source(name: str, table: KernelTable) -> str:
    """Print ``kernels.cu``, which includes the kernel file of that name."""
    addresses = ",\n".join(f"    reinterpret_cast<const void*>(&{each})" for each in table.names) or "    nullptr"
    spelled = ",\n".join(f"    {cpp_string(each)}" for each in table.names) or '    ""'
    return (
        "// Compiles the kernels as they were verified, apart from PyTorch's headers.\n"
        f'#include "{name}.cu"\n\n#include "kernels.h"\n\nnamespace kernels {{\n\n'
        f"const void* const all[] = {{\n{addresses},\n}};\n\n"
        f"const char* const names[] = {{\n{spelled},\n}};\n\n}}  // namespace kernels\n"
    )


def refuse_overloads(operator: OperatorText, table: KernelTable) -> None:
    """Raise PlanError for an overloaded kernel, whose address would be ambiguous."""
    declared = [signature.name for signature in operator.forward.signatures]
    for name in table.names:
        plain = name.partition("<")[0].removeprefix("::")
        if declared.count(plain) > 1:
            raise PlanError(
                f"the kernel '{plain}' is overloaded, and a package needs its address",
                next_step="give the overloads names of their own",
            )
