"""An operator in Python text: its documentation, its contract, and what computes it where no kernel does."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_lsp.core.plan import KernelSignature, LaunchPlan, Operation, TensorParameter
from kernel_lsp.core.task import Task, TaskScalar, TaskTensor
from kernel_lsp.errors import PlanError, TargetError
from kernel_lsp.export.python.contract_text import fake_function, mismatch_function, outside_function
from kernel_lsp.export.python.function_text import offered_names, use_functions
from kernel_lsp.export.python.module_text import is_module
from kernel_lsp.export.python.operation_text import (
    NAMESPACE,
    SCHEMA_TYPES,
    OperationText,
    OperatorArgument,
    dtype_and_shape,
    names_in_steps,
)
from kernel_lsp.export.python.operator_imports import imported_names
from kernel_lsp.export.python.python_text import (
    LINE_LENGTH,
    bracketed,
    indented,
    literal,
    python_identifier,
    python_number,
    returned,
    string_literal,
    tuple_text,
)
from kernel_lsp.export.python.reference_text import reference_function
from kernel_lsp.export.python.runtime_text import runtime_names
from kernel_lsp.plan.fixed_dims import with_fixed_dims
from kernel_lsp.plan.task_names import with_task_names

LOCAL_NAMES = (
    "_kernels",
    "inputs_key",
    "launches",
    "stream",
    "device_index",
    "reason",
    "holds",
    "ctx",
    "inputs",
    "arguments",
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
ORIGIN = (
    "The kernels and their launch plan are in {name}.cu beside this file. They are compiled at first use, by the NVRTC "
    "that comes with PyTorch, and cached."
)


@dataclass(frozen=True)
class OperatorParts:
    """What an operator file is made of. `verification` says in a sentence or more how the kernels were checked."""

    task: Task
    plan: LaunchPlan
    signatures: tuple[KernelSignature, ...]
    verification: str
    namespace: str = NAMESPACE
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that the kernels' text includes and NVRTC does not have, by name."""


class OperatorText:
    """Prints the parts that need to know the task and the plan."""

    def __init__(self, parts: OperatorParts) -> None:
        self._parts, self.task, self.headers = parts, parts.task, parts.headers
        self.plan = with_fixed_dims(with_task_names(parts.plan, parts.task), parts.task)
        self.name = parts.task.name
        self._reserved = frozenset({*runtime_names(), *_own_names(self.name)})
        self._arguments = tuple(self._argument(index) for index in range(len(parts.task.arguments)))
        if not parts.task.tensors:
            raise TargetError(f"{self.name} takes no tensor, so no operator can be made of it", file=parts.task.target)
        self.forward = self._operation(self.name, self.plan.forward, self._arguments, parts.signatures)
        gradients = tuple(self._gradient(result.name) for result in self.differentiable_results)
        self.backward: OperationText | None = None
        if self.plan.backward is not None:
            arguments = (*gradients, *self._arguments)
            self.backward = self._operation(f"{self.name}_backward", self.plan.backward, arguments, parts.signatures)

    @property
    def operations(self) -> tuple[OperationText, ...]:
        """The forward, and the backward where there is one."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    # what a reader sees first

    def docstring(self, origin: str = ORIGIN, module: str = "") -> list[str]:
        """What this is, where it is from, how it was verified, what it takes. `module` is what users import from."""
        paragraphs = [
            f"Made by kernel-lsp from {self.task.target}. {origin.format(name=self.name)}",
            f"Verified: {self._parts.verification}",
            "The kernels take these inputs, on one CUDA device; PyTorch computes everything else:",
        ]
        offered = ", ".join(offered_names(self.task) if is_module(self.task) else (self.name,))
        lines = [f'"""`{self.name}` as a CUDA operator.', ""]
        for paragraph in paragraphs:
            lines += [*textwrap.wrap(_plain(paragraph), LINE_LENGTH), ""]
        lines += [*(f"    {line}" for line in self.contract()), "", "Use it so:", ""]
        return [*lines, f"    from {module or self.name} import {offered}", '"""']

    def public_names(self) -> str:
        names = offered_names(self.task)
        return f"__all__ = [{', '.join(string_literal(name) for name in names)}]"

    def public_function(self) -> list[str]:
        """The function that users call."""
        names = self.forward.argument_names
        body = [
            *bracketed(f"reason = _{self.name}_outside(", names, ")", depth=1),
            "if reason:",
            *indented([f'_say_once("{self.name}", reason)']),
            *indented(bracketed(f"return {self.name}_reference(", names, ")", depth=2)),
            *bracketed(f"return {self.forward.qualified_name}(", names, ")", depth=1),
        ]
        return self.documented_function(body)

    def documented_function(self, body: Sequence[str]) -> list[str]:
        """The function that users call, with its documentation and this body."""
        declarations = [
            argument.declaration + (f" = {argument.default}" if argument.default else "")
            for argument in self._arguments
        ]
        docstring = [
            f'"""{_plain(self._title())}',
            "",
            "Args:",
            *(f"    {argument.name}: {argument.description}" for argument in self._arguments),
            "",
            "Returns:",
            *(
                f"    {result.name}: {dtype_and_shape(result.dtype, result.dims)}"
                for result in self.forward.operation.results
            ),
            '"""',
        ]
        definition = bracketed(f"def {self.name}(", declarations, f") -> {self.forward.returns}:")
        return [*definition, *indented([*docstring, *body])]

    def module_part(self) -> list[list[str]]:
        """How what it was made from is made to use the operator."""
        return use_functions(self.task, self.forward)

    def reference(self) -> list[str]:
        """The PyTorch code that the kernels replace."""
        return reference_function(self.task, self.forward)

    def _title(self) -> str:
        what = self.task.target.rpartition("::")[2].rpartition("/")[2] or self.name
        return f"{what}: by CUDA kernels where they can, by PyTorch where not."

    def contract(self) -> Iterable[str]:
        """What the kernels take, a line each."""
        for tensor in self.forward.inputs:
            yield f"{self.forward.rename(tensor.name)}: {dtype_and_shape(tensor.dtype, tensor.dims)}"
        for argument in self._arguments:
            if argument.fixed is not None:
                yield f"{argument.name} == {python_number(argument.fixed)}"
        for condition in self.forward.operation.where:
            yield str(condition.expression)

    # the operations

    def contract_functions(self, text: OperationText) -> list[list[str]]:
        """What is there of an operation where no kernel runs: its contract, its fake and its fallback."""
        outside_shapes, by_pytorch = self._forward_fallback() if text is self.forward else self._backward_fallback(text)
        return [mismatch_function(text), outside_function(text), fake_function(text, outside_shapes), by_pytorch]

    def _forward_fallback(self) -> tuple[list[str], list[str]]:
        text = self.forward
        reference = bracketed(f"results = {self.name}_reference(", text.argument_names, ")", depth=2)
        inputs = [argument.name for argument in self._arguments if argument.is_tensor]
        is_single = len(text.operation.results) == 1
        body = [
            '"""The results by PyTorch, in tensors of their own as the operator must return them."""',
            *literal("inputs = (", inputs, ")", depth=1),
            f"with torch.autocast({inputs[0]}.device.type, enabled=False):",
            *indented(reference),
            "return _own((results,), inputs)[0]" if is_single else "return _own(results, inputs)",
        ]
        empty = "return _empty_like(results)" if is_single else "return tuple(map(_empty_like, results))"
        return [*reference, empty], [*text.define("_", "_by_pytorch", text.returns), *indented(body)]

    def _backward_fallback(self, text: OperationText) -> tuple[list[str], list[str]]:
        wanted = [self.forward.rename(result.name.removeprefix("grad_")) for result in text.operation.results]
        names = [argument.name for argument in self._arguments]
        needed = [str(name in wanted) for name in names]
        gradients = tuple_text([argument.name for argument in text.arguments[: len(self.differentiable_results)]])
        inputs = [argument.name for argument in text.arguments if argument.is_tensor]
        found = [f"found[{names.index(name)}]" for name in wanted]
        call = [f"{self.name}_reference", "arguments", "needed", gradients]
        body = [
            '"""The gradients by PyTorch: the reference again, under autograd."""',
            *literal("arguments = (", names, ")", depth=1),
            *literal("needed = (", needed, ")", depth=1),
            "with _autograd_in_operator():",
            *indented(bracketed("found = _gradients(", call, ")", depth=2)),
            *literal("results = (", found, ")", depth=1),
            *literal("inputs = (", inputs, ")", depth=1),
            "owned = _own(results, inputs)",
            "return owned" if len(wanted) > 1 else "return owned[0]",
        ]
        empties = [f"_empty_like({name})" for name in wanted]
        return returned(empties, depth=2), [*text.define("_", "_by_pytorch", text.returns), *indented(body)]

    # autograd

    @property
    def differentiable_results(self) -> list[TensorParameter]:
        """The results that a gradient can come from."""
        return [result for result in self.plan.forward.results if result.dtype.is_floating]

    @property
    def is_differentiable(self) -> bool:
        has_input = any(tensor.type.dtype.is_floating for tensor in self.task.tensors)
        return has_input and bool(self.differentiable_results)

    def arguments_without_gradient(self) -> list[int]:
        """Which arguments might need a gradient and get none from the backward's kernels."""
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
            place = f", the module's {argument.qualified_name}" if argument.qualified_name else ""
            description = dtype_and_shape(argument.type.dtype, argument.type.shape) + place
            return OperatorArgument(name, "Tensor", "Tensor", description)
        value = python_number(argument.value)
        is_taken = all(argument.name in names_in_steps(operation) for operation in self.plan.operations)
        only = f", verified at {value}" if is_taken else f", only {value}"
        return OperatorArgument(
            name=name,
            annotation=argument.type,
            schema_type=SCHEMA_TYPES[argument.type],
            description=f"{argument.type}{only}",
            default=value if self._is_last(index) else None,
            fixed=None if is_taken else argument.value,
        )

    def _is_last(self, index: int) -> bool:
        """Whether only numbers follow, so that a default may stand."""
        return all(isinstance(argument, TaskScalar) for argument in self.task.arguments[index:])

    def _gradient(self, result: str) -> OperatorArgument:
        name = python_identifier(f"grad_{result}", self._reserved)
        return OperatorArgument(name, "Tensor", "Tensor", f"the gradient of {result}")

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


# --- below: parts of the file


def _own_names(name: str) -> set[str]:
    """What the file itself defines or uses as locals, so that no argument or dim may be called so."""
    launches = {f"launch_{number}" for number in range(1, MAX_LAUNCHES + 1)}
    return {*imported_names(), *launches, *LOCAL_NAMES, name, f"{name}_reference", "Launches", "torch", "F"}


def _plain(text: str) -> str:
    """Text that can stand in a docstring."""
    return text.replace("\\", "/").replace('"""', "'''")
