"""Print an operator as Python text: its documentation, its contract, and its fallback."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.core.plan import KernelSignature, LaunchPlan, Operation, TensorParameter
from kernel_lsp.core.task import Task, TaskScalar, TaskTensor
from kernel_lsp.errors import PlanError, TargetError
from kernel_lsp.export.python.function_text import call_structures, is_module, module_use, offered_names, use_function
from kernel_lsp.export.python.operation_text import (
    NAMESPACE,
    RUNTIME,
    SCHEMA_TYPES,
    OperationText,
    OperatorArgument,
    dtype_and_shape,
    names_in_steps,
)
from kernel_lsp.export.python.operator_imports import imported_names
from kernel_lsp.export.python.plan_text import plan_constant
from kernel_lsp.export.python.python_text import (
    INDENT,
    LINE_LENGTH,
    call,
    indented,
    literal,
    packed,
    python_identifier,
    python_number,
    signature_lines,
    string_literal,
)
from kernel_lsp.export.python.reference_text import reference_function, unread_numbers
from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE, runtime_names
from kernel_lsp.plan.renaming import given_by_forward, with_fixed_dims, with_task_names

LOCAL_NAMES = (
    "run",
    "launches",
    "stream",
    "ctx",
    "inputs",
    "arguments",
    "given",
    "more",
    "needed",
    "returned",
    "value",
    "found",
    "results",
    "owned",
    "output",
    "module",
    "why",
    "gradients",
)
MAX_LAUNCHES = 64
MAX_TAKES_LINES = 2
ORIGIN = (
    f"Kernels and launch plan: {{name}}.cu. {RUNTIME_MODULE}.py, beside it, compiles them at first use, by the NVRTC "
    "that comes with PyTorch."
)


@dataclass(frozen=True)
class OperatorParts:
    """Inputs of an operator file. `verification` states in a sentence or more how the kernels were checked."""

    task: Task
    plan: LaunchPlan
    signatures: tuple[KernelSignature, ...]
    verification: str
    namespace: str = NAMESPACE
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that the kernels' text includes and NVRTC lacks, by name."""


class OperatorText:
    """Prints the parts that need to know the task and the plan."""

    def __init__(self, parts: OperatorParts) -> None:
        self._parts, self.task, self.headers = parts, parts.task, parts.headers
        self.named = with_task_names(parts.plan, parts.task)
        self.plan = _with_needed(with_fixed_dims(self.named, parts.task))
        self.name = parts.task.name
        self._reserved = frozenset({*runtime_names(), *_own_names(self.name)})
        self._arguments = tuple(self._argument(index) for index in range(len(parts.task.arguments)))
        if not parts.task.tensors:
            raise TargetError(f"{self.name} takes no tensor, so no operator can be made of it", file=parts.task.target)
        self.forward = self._operation(self.name, self.plan.forward, self._arguments, parts.signatures)
        gradients = tuple(self._gradient(result.name) for result in self.differentiable_results)
        self.backward: OperationText | None = None
        if self.plan.backward is not None:
            given = (self._given(tensor) for tensor in given_by_forward(self.plan))
            arguments = (*gradients, *given, *self._arguments)
            self.backward = self._operation(f"{self.name}_backward", self.plan.backward, arguments, parts.signatures)

    @property
    def operations(self) -> tuple[OperationText, ...]:
        """Return the forward, and the backward where there is one."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    # documentation

    def docstring(self, origin: str = ORIGIN, contract: str = "") -> list[str]:
        """Print the description, the verification and the contract of the kernels, or where it stands."""
        made = f"`{self.name}` as a CUDA operator, made by kernel-lsp from {self.task.target}."
        taken = contract or "; ".join(self.contract())
        paragraphs = [
            origin.format(name=self.name),
            f"Verified: {self._parts.verification}",
            f"The kernels take {taken}, on one CUDA device. PyTorch computes everything else.",
        ]
        first, *lines = textwrap.wrap(_plain(made), LINE_LENGTH - len(INDENT))
        wrapped = [line for paragraph in paragraphs for line in textwrap.wrap(_plain(paragraph), LINE_LENGTH)]
        return [f'"""{first}', *lines, "", *wrapped, '"""']

    def public_names(self) -> str:
        """Print ``__all__``."""
        return f"__all__ = [{', '.join(string_literal(name) for name in self.offered)}]"

    @property
    def offered(self) -> list[str]:
        """List the public names of the file, sorted and without duplicates."""
        return sorted({"calls", *offered_names(self.task)})

    def runtime_import(self) -> list[str]:
        """Print the import of the shared runtime: from the package, or from the file's folder on the path."""
        inside, outside = f"from . import {RUNTIME_MODULE} as {RUNTIME}", f"import {RUNTIME_MODULE} as {RUNTIME}"
        return ["if __package__:", *indented([inside]), "else:", *indented([outside])]

    def public_function(self) -> list[str]:
        """Print the function that users call."""
        body = call("return OPERATOR(", [], self.forward.argument_names, depth=1)
        return self.documented_function(body, f"{self.name}.cu")

    def documented_function(self, body: Sequence[str], plan: str = "") -> list[str]:
        """Print the function that users call, with its documentation and this body. A long list of what it takes is
        left to the file of the `plan`."""
        declarations = [
            argument.declaration + (f" = {argument.default}" if argument.default else "")
            for argument in self._arguments
        ]
        results = (f"{r.name}: {dtype_and_shape(r.dtype, r.dims)}" for r in self.forward.operation.results)
        title = f"{_plain(self._title())} Returns {', '.join(results)}."
        first, *lines = textwrap.wrap(title, LINE_LENGTH - 2 * len(INDENT))
        described = [f"{argument.name}: {argument.description}" for argument in self._arguments]
        takes = textwrap.wrap(f"Takes {'; '.join(described)}.", LINE_LENGTH - len(INDENT))
        if plan and len(takes) > MAX_TAKES_LINES:
            numbers = [
                each for each, argument in zip(described, self._arguments, strict=True) if not argument.is_tensor
            ]
            text = "; ".join([f"Takes the tensors in the `op:` line of {plan}", *numbers])
            takes = textwrap.wrap(f"{text}.", LINE_LENGTH - len(INDENT))
        docstring = [f'"""{first}', *lines, "", *takes, '"""']
        definition = signature_lines(f"def {self.name}(", declarations, f") -> {self.forward.result_annotation}:")
        return [*definition, *indented([*docstring, *body])]

    def launch_plan(self) -> list[str]:
        """Print the plan that the runtime reads from the `.cu` file, with what that file leaves open."""
        return plan_constant(self._parts.plan, self.named, self.operations)

    def use_part(self) -> list[str]:
        """Print the function that makes the original use the operator."""
        return use_function(self.task)

    def reference(self, plan: str = "") -> list[str]:
        """Return the PyTorch code that the kernels replace, below the `plan` that has its sizes."""
        return reference_function(self.task, self.forward, plan)

    def _title(self) -> str:
        what = self.task.target.rpartition("::")[2].rpartition("/")[2] or self.name
        return f"{what}: by CUDA kernels inside their contract, else by PyTorch."

    def contract(self) -> Iterable[str]:
        """Return the contract of the kernels, one line per item."""
        for tensor in self.forward.inputs:
            yield f"{self.forward.rename(tensor.name)}: {dtype_and_shape(tensor.dtype, tensor.dims)}"
        for argument in self._arguments:
            if argument.fixed is not None:
                yield f"{argument.name} == {python_number(argument.fixed)}"
        for condition in self.forward.operation.where:
            yield str(condition.expression)

    # the operator itself

    def operator_arguments(self) -> list[str]:
        """Print the arguments of a package's operator, whose launches are in C++."""
        lines = []
        if self.backward is not None:
            lines += packed("gradients=(", list(map(string_literal, self.gradient_names)), "),", depth=1)
            if places := self.given_places:
                lines += literal("given=(", list(map(str, places)), "),", depth=1)
                lines += [f"n_kept={len(kept)},"] if (kept := self.forward.operation.kept) else []
        return [*lines, *self.module_arguments()]

    def module_arguments(self) -> list[str]:
        """Print what the reference has in it as constants, and how a module's method calls the operator."""
        lines = []
        if captured := unread_numbers(self.task, self.forward):
            items = [f"{string_literal(name)}: {python_number(value)}" for name, value in captured.items()]
            lines += literal("captured={", items, "},", depth=1)
        if constants := self.task.call_constants:
            items = [f"{string_literal(name)}: {value}" for name, value in constants.items()]
            lines += literal("constants={", items, "},", depth=1)
        if structures := call_structures(self.task, self.forward.rename):
            lines += literal("structures={", structures, "},", depth=1)
        if is_module(self.task):
            lines += module_use(self.task)
        if self.task.returns:
            lines.append(f"returns={self.task.returns},")
        if self.task.code_digest:
            lines.append(f"code={string_literal(self.task.code_digest)},")
        if self.task.has_no_grad_region:
            lines.append("no_grad=True,")
        return lines

    @property
    def gradient_names(self) -> list[str]:
        """List the arguments whose gradients the backward's kernels make, in the order of its results."""
        assert self.backward is not None
        return [self._argument_of(output.name) for output in self.backward.operation.outputs]

    @property
    def given_places(self) -> list[int]:
        """Return what the backward is given of the tensors that the forward returns, by place."""
        names = [tensor.name for tensor in self.forward.returned]
        return [names.index(tensor.name) for tensor in given_by_forward(self.plan)]

    def _argument_of(self, gradient: str) -> str:
        return self.forward.rename(gradient.removeprefix("grad_"))

    # autograd

    @property
    def differentiable_results(self) -> list[TensorParameter]:
        """Return the results that a gradient can come from."""
        return [result for result in self.plan.forward.results if result.dtype.is_floating]

    @property
    def is_differentiable(self) -> bool:
        has_input = any(tensor.type.dtype.is_floating for tensor in self.task.tensors)
        return has_input and bool(self.differentiable_results)

    def arguments_without_gradient(self) -> list[int]:
        """Return the positions of arguments that might need a gradient and get none from the backward's kernels."""
        assert self.backward is not None
        made = {result.name for result in self.backward.operation.results}
        return [
            index
            for index, argument in enumerate(self.task.arguments)
            if isinstance(argument, TaskTensor)
            and argument.type.dtype.is_floating
            and f"grad_{argument.name}" not in made
        ]

    # arguments

    def _argument(self, index: int) -> OperatorArgument:
        argument = self.task.arguments[index]
        name = python_identifier(argument.name, self._reserved)
        if isinstance(argument, TaskTensor):
            place = _place(argument)
            description = dtype_and_shape(argument.type.dtype, argument.type.shape) + place
            return OperatorArgument(name, "Tensor", "Tensor", description)
        value = python_number(argument.value)
        is_taken = self._is_taken(argument.name)
        only = f", verified at {value}" if is_taken else f", only {value}"
        return OperatorArgument(
            name=name,
            annotation=argument.type,
            schema_type=SCHEMA_TYPES[argument.type],
            description=f"{argument.type}{_place(argument)}{only}",
            default=value if self._is_last(index) else None,
            fixed=None if is_taken else argument.value,
        )

    def _is_taken(self, name: str) -> bool:
        """Return True if every operation takes the number, or computes nothing from it. A backward that is given what
        the forward kept has the number in that."""
        is_known = any(name in graph.numbers for graph in self.task.graphs)
        is_kept = bool(given_by_forward(self.plan)) and name in names_in_steps(self.plan.forward)
        return all(
            name in names_in_steps(operation)
            or (is_known and name not in graph.numbers)
            or (is_kept and operation is not self.plan.forward)
            for operation, graph in zip(self.plan.operations, self.task.graphs, strict=False)
        )

    def _is_last(self, index: int) -> bool:
        """Return True if only numbers follow, so that a default value is allowed."""
        return all(isinstance(argument, TaskScalar) for argument in self.task.arguments[index:])

    def _gradient(self, result: str) -> OperatorArgument:
        name = python_identifier(f"grad_{result}", self._reserved)
        return OperatorArgument(name, "Tensor", "Tensor", f"the gradient of {result}")

    def _given(self, tensor: TensorParameter) -> OperatorArgument:
        name = python_identifier(tensor.name, self._reserved)
        return OperatorArgument(name, "Tensor", "Tensor", f"{tensor.name} of the forward")

    def _operation(
        self,
        name: str,
        operation: Operation,
        arguments: tuple[OperatorArgument, ...],
        signatures: tuple[KernelSignature, ...],
    ) -> OperationText:
        text = OperationText(name, operation, arguments, signatures, self._reserved, self._parts.namespace)
        known = {argument.name for argument in arguments}
        for parameter in operation.parameters:
            if text.rename(parameter.name) not in known:
                message = f"'{parameter.name}' of {operation.name} is no argument of {self.task.target}"
                raise PlanError(message, line=parameter.span.line, next_step="use the names of the task's arguments")
        if not text.inputs:
            raise PlanError(f"{operation.name} takes no tensor", line=operation.span.line)
        return text


def _place(argument: TaskTensor | TaskScalar) -> str:
    """Return the place of an argument in the module, unless its name states it."""
    place = argument.qualified_name or ""
    return "" if place.replace(".", "_") in ("", argument.name) else f", the module's {place}"


def _with_needed(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan whose forward keeps what the backward takes; the rest of what it keeps is scratch."""
    given = {tensor.name for tensor in given_by_forward(plan)}
    forward = plan.forward
    unused = tuple(tensor for tensor in forward.kept if tensor.name not in given)
    kept = tuple(tensor for tensor in forward.kept if tensor.name in given)
    first = replace(forward, kept=kept, scratch=(*unused, *forward.scratch))
    return replace(plan, operations=(first, *plan.operations[1:]))


def _own_names(name: str) -> set[str]:
    """Return the names that the file itself defines or uses as locals. Arguments and dims must not shadow them."""
    launches = {f"launch_{number}" for number in range(1, MAX_LAUNCHES + 1)}
    return {*imported_names(), *launches, *LOCAL_NAMES, name, f"{name}_reference", "Launches", "torch", "F"}


def _plain(text: str) -> str:
    """Text that can stand in a docstring."""
    return text.replace("\\", "/").replace('"""', "'''")
