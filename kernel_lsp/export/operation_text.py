"""One operation of a launch plan as Python functions: its contract, its launches, its allocation.

Every function of an operation takes the operator's arguments, all of them and in the operator's order.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression, Name, Number, free_names
from kernel_lsp.core.plan import (
    Fill,
    KernelSignature,
    Launch,
    LibraryArgument,
    LibraryStep,
    Operation,
    ScalarParameter,
    TensorParameter,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.export.countable import countable
from kernel_lsp.export.python_text import (
    INDENT,
    LINE_LENGTH,
    bracketed,
    differs,
    indented,
    literal,
    may_divide_by_zero,
    negated,
    python_expression,
    python_identifier,
    python_number,
    returned,
    string_literal,
    tuple_text,
    unpacked,
)
from kernel_lsp.plan.cuda_types import resolve_template, scalar_type
from kernel_lsp.plan.kernel_names import find_signature
from kernel_lsp.plan.printer import print_step

NAMESPACE = "kernel_lsp"
"""Of the operators of one-file results, in `torch.ops`."""
SCHEMA_TYPES = {"float": "float", "int": "SymInt", "bool": "bool"}


@dataclass(frozen=True)
class OperatorArgument:
    """An argument of the operator. `fixed` is the number that the kernels were made for, when they take no other."""

    name: str
    annotation: str
    schema_type: str
    description: str
    default: str | None = None
    fixed: Number | None = None

    @property
    def is_tensor(self) -> bool:
        return self.annotation == "Tensor"

    @property
    def declaration(self) -> str:
        """``x: Tensor``, as a parameter without default."""
        return f"{self.name}: {self.annotation}"


@dataclass(frozen=True)
class OperationText:
    """Prints the functions of `operation`, which the operator calls `name`."""

    name: str
    operation: Operation
    arguments: tuple[OperatorArgument, ...]
    signatures: tuple[KernelSignature, ...]
    reserved: frozenset[str]
    namespace: str = NAMESPACE

    @property
    def qualified_name(self) -> str:
        """As Python spells the operator: ``torch.ops.kernel_lsp.rms_norm``."""
        return f"torch.ops.{self.namespace}.{self.name}"

    @property
    def returns(self) -> str:
        """The annotation of what it returns."""
        n = len(self.operation.results)
        return "Tensor" if n == 1 else f"tuple[{', '.join(['Tensor'] * n)}]"

    @property
    def schema(self) -> str:
        """As `torch.library.Library.define` takes it."""
        arguments = ", ".join(f"{argument.schema_type} {argument.name}" for argument in self.arguments)
        n = len(self.operation.results)
        results = "Tensor" if n == 1 else f"({', '.join(['Tensor'] * n)})"
        return f"{self.name}({arguments}) -> {results}"

    @property
    def argument_names(self) -> list[str]:
        """The arguments as a call passes them on."""
        return [argument.name for argument in self.arguments]

    @property
    def inputs(self) -> tuple[TensorParameter, ...]:
        """The tensors that the kernels read."""
        return tuple(p for p in self.operation.parameters if isinstance(p, TensorParameter))

    @property
    def conditions(self) -> tuple[Expression, ...]:
        """What must hold of dims and numbers: the plan's `where:` lines, and that no tensor is too large."""
        return (*(condition.expression for condition in self.operation.where), *countable(self.operation))

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The name expressions that do not depend on shapes, so that one compilation makes them all."""
        names = [self._kernel_name(launch) for launch in self.launches]
        return tuple(name[1:-1] for name in names if name.startswith('"'))

    def rename(self, name: str) -> str:
        """The Python name of a tensor, a dim or a scalar of the plan."""
        return python_identifier(name, self.reserved)

    def define(self, prefix: str, suffix: str, returns: str) -> list[str]:
        """The ``def`` line of one of the functions."""
        declarations = [argument.declaration for argument in self.arguments]
        return bracketed(f"def {prefix}{self.name}{suffix}(", declarations, f") -> {returns}:")

    # the contract

    def mismatch_function(self) -> list[str]:
        """Dtypes, ranks and dims: what decides whether the results have the plan's shapes."""
        body = ['"""Why dtypes or shapes are not those of the plan; empty when they are."""']
        for argument in self.arguments:
            if not argument.is_tensor:
                body += [f"if not isinstance({argument.name}, _NUMBERS):"]
                body += indented([f'return "{argument.name} is not a number"'])
            if argument.fixed is not None:
                body += [f"if {differs(argument.name, argument.fixed)}:"]
                body += indented([f'return "{argument.name} is not {python_number(argument.fixed)}"'])
        for tensor in self.inputs:
            dtype = f"torch.{tensor.dtype.torch_name}"
            body += [f"if not _is_tensor({self.rename(tensor.name)}, {dtype}, {len(tensor.dims)}):"]
            body += indented([f'return "{self.rename(tensor.name)} is not a non-empty {_type_text(tensor)}"'])
        checks = [check for tensor in self.inputs for check in self.dim_checks(tensor)]
        body += self._bindings(checked for _, checked in checks)
        for condition, tensor in _conditions(checks, self.inputs, self.rename):
            body += [f"if {condition}:"]
            body += indented([f'return "{self.rename(tensor.name)} is not {_type_text(tensor)}"'])
        return [*self.define("_", "_mismatch", "str"), *indented([*body, 'return ""'])]

    def outside_function(self) -> list[str]:
        """The whole contract: GPU, dtypes and shapes, the plan's `where:` lines, and what kernels can count."""
        inputs = [self.rename(tensor.name) for tensor in self.inputs]
        body = ['"""Why the kernels cannot take these inputs; empty when they can."""']
        body += bracketed(f"reason = _{self.name}_mismatch(", self.argument_names, ")", depth=1)
        body += bracketed("reason = reason or _not_on_one_gpu(", inputs, ")", depth=1)
        body += ["if reason:", *indented(["return reason"])]
        body += self._bindings(self.conditions)
        for condition in self.conditions:
            body += self._where(condition)
        return [*self.define("_", "_outside", "str"), *indented([*body, 'return ""'])]

    def _where(self, condition: Expression) -> list[str]:
        refused = indented([f"return {string_literal(f'{condition} does not hold')}"])
        if not may_divide_by_zero(condition):
            return [f"if {negated(condition, self.rename)}:", *refused]
        return [
            "try:",
            *indented([f"holds = bool({python_expression(condition, self.rename)})"]),
            "except ZeroDivisionError:",
            *indented(["holds = False"]),
            "if not holds:",
            *refused,
        ]

    # shapes without data

    def fake_function(self, mismatch: Sequence[str]) -> list[str]:
        """The results' shapes and dtypes; `mismatch` is what to return outside the plan's shapes."""
        results = self.operation.results
        body = ['"""Results without data, for tracing and `torch.compile`."""']
        body += bracketed(f"if _{self.name}_mismatch(", self.argument_names, "):", depth=1)
        body += indented(mismatch)
        body += self._bindings(dim for result in results for dim in result.dims)
        device = f"{self.rename(self.inputs[0].name)}.device"
        empties = [self._empty(result, device) for result in results]
        if len(empties) == 1:
            body += [f"return {empties[0]}"]
        else:
            body += ["return (", *indented(f"{empty}," for empty in empties), ")"]
        return [*self.define("_", "_fake", self.returns), *indented(body)]

    # the launches

    def bind_function(self) -> list[str]:
        """Everything about the launches that shapes and numbers decide."""
        body = ['"""The launches for these shapes and numbers."""']
        if not self.launches:
            return [*self.define("_", "_bind", "tuple[Any, ...]"), *indented([*body, "return ()"])]
        body += [f"device_index = {self.rename(self.inputs[0].name)}.device.index"]
        body += self._bindings(expression for launch in self.launches for expression in _expressions(launch))
        names = [f"launch_{number}" for number in range(1, len(self.launches) + 1)]
        for name, launch in zip(names, self.launches, strict=True):
            body += self._bind(name, launch)
        return [
            *self.define("_", "_bind", "tuple[Any, ...]"),
            *indented([*body, *literal("return (", names, ")", depth=1)]),
        ]

    def _bind(self, name: str, launch: Launch) -> list[str]:
        comment = _comment(print_step(launch), depth=1)
        depth = 2 if launch.condition is None else 3
        made = [
            f"{name} = KernelLaunch(",
            *indented(
                [
                    f"_kernels().function({self._kernel_name(launch)}, device_index),",
                    f"grid={self._size(launch.grid)},",
                    f"block={self._size(launch.block)},",
                    f"shared_bytes={self._python(launch.shared_bytes)},",
                    *literal("arguments=(", self._kernel_arguments(launch), "),", depth),
                    f"attributes={_attributes(launch)},",
                ]
            ),
            ")",
        ]
        if launch.condition is None:
            return [*comment, *made]
        condition = self._python(launch.condition)
        return [*comment, f"{name} = None", f"if {condition}:", *indented(made)]

    def _kernel_arguments(self, launch: Launch) -> list[str]:
        signature = self.signature(launch)
        templates = tuple(argument if isinstance(argument, str) else "" for argument in launch.template_arguments)
        items = []
        for argument, parameter in zip(launch.arguments, signature.parameters, strict=True):
            if parameter.is_pointer:
                items.append("POINTER")
                continue
            element = resolve_template(parameter.element, signature, templates)
            cuda_type = None if element is None else scalar_type(element)
            if cuda_type is None:
                message = f"the parameter '{parameter.name}' of '{launch.kernel}' is {parameter.element}, no number"
                raise PlanError(message, line=launch.span.line)
            items.append(f'("{cuda_type}", {self._python(argument)})')
        return items

    def _kernel_name(self, launch: Launch) -> str:
        """A Python expression for the name expression, e.g. ``"rows<256>"`` or ``f"rows<{D}>"``."""
        texts = [self._template_text(argument) for argument in launch.template_arguments]
        has_defaults = bool(self.signature(launch).template_parameters)
        name = f"{launch.kernel}<{', '.join(texts)}>" if texts or has_defaults else launch.kernel
        return f'{"f" if "{" in name else ""}"{name}"'

    def _template_text(self, argument: Expression | str) -> str:
        if isinstance(argument, str):
            return argument
        if free_names(argument):
            return f"{{str({self._python(argument)}).lower()}}"
        return self._python(argument).lower()

    def signature(self, launch: Launch) -> KernelSignature:
        """The kernel that a line launches. Raises PlanError when there is none."""
        signature = find_signature(launch, self.signatures)
        if signature is None or len(signature.parameters) != len(launch.arguments):
            raise PlanError(f"no kernel '{launch.kernel}' that takes these arguments", line=launch.span.line)
        return signature

    # the call

    def cuda_function(self) -> list[str]:
        """One call on a GPU: allocate, and take the steps."""
        inputs = [self.rename(tensor.name) for tensor in self.inputs]
        facts = [f"{name}.{fact}" for name in inputs for fact in ("device", "dtype", "shape")]
        scalars = [argument.name for argument in self.arguments if not argument.is_tensor]
        functions = [f"_{self.name}_outside", f"_{self.name}_bind"]
        bound = [f'"{self.name}"', "inputs_key", *functions, *(argument.name for argument in self.arguments)]
        lookup = [
            *literal("inputs_key = (", [f"_{self.name}_bind", *facts, *scalars], ")", depth=1),
            "launches = _BOUND.by_inputs.get(inputs_key)",
            "if launches is None:",
            *indented(bracketed("launches = _bound(", bound, ")", depth=2)),
            "if isinstance(launches, str):",
            *indented(bracketed(f"return _{self.name}_by_pytorch(", self.argument_names, ")", depth=2)),
        ]
        results = [self.rename(result.name) for result in self.operation.results]
        steps = [*self._prepare(inputs), *self._steps(), *returned(results, depth=2)]
        guard = f"with on_device({inputs[0]}.device.index)"
        guard += ', torch.autocast("cuda", enabled=False):' if self.library_functions else ":"
        return [*self.define("_", "_cuda", self.returns), *indented([*lookup, guard, *indented(steps)])]

    @property
    def library_functions(self) -> tuple[str, ...]:
        """The vendor library functions among the steps."""
        steps = (step for step in self.operation.steps if isinstance(step, LibraryStep))
        return tuple(dict.fromkeys(step.function for step in steps))

    def _prepare(self, inputs: Sequence[str]) -> list[str]:
        lines = [f"{name} = _ready({name})" for name in inputs]
        allocated = self.allocated()
        used = [dim for tensor in allocated for dim in tensor.dims]
        lines += self._bindings([*used, *self._step_expressions()])
        lines += [f"{self.rename(t.name)} = {self._empty(t, f'{inputs[0]}.device')}" for t in allocated]
        if self.launches:
            lines += [f"stream = current_stream({inputs[0]}.device.index)"]
            names = [f"launch_{number}" for number in range(1, len(self.launches) + 1)]
            lines += unpacked(names, "launches", 2)
        return lines

    def _steps(self) -> list[str]:
        lines: list[str] = []
        n_launches = 0
        for step in self.operation.steps:
            match step:
                case Fill(tensor, value):
                    lines += [f"{self.rename(tensor)}.fill_({self._python(value)})"]
                case Launch():
                    n_launches += 1
                    lines += self._launch(f"launch_{n_launches}", step)
                case LibraryStep():
                    lines += self._library(step)
        return lines

    def _launch(self, name: str, launch: Launch) -> list[str]:
        parameters = self.signature(launch).parameters
        tensors = [a for a, p in zip(launch.arguments, parameters, strict=True) if p.is_pointer]
        pointers = [f"{self._python(tensor)}.data_ptr()" for tensor in tensors]
        if launch.condition is None:
            return bracketed(f"{name}(", ["stream", *pointers], ")", depth=2)
        return [f"if {name} is not None:", *indented(bracketed(f"{name}(", ["stream", *pointers], ")", depth=3))]

    def _library(self, step: LibraryStep) -> list[str]:
        arguments = [self._library_argument(argument) for argument in step.arguments]
        results = [self.rename(result) for result in step.results]
        function = "torch.ops." + step.function.replace("::", ".")
        depth = 2 if step.condition is None else 3
        if len(results) == 1 and not step.function.endswith("_backward"):
            lines = bracketed(f"{results[0]} = {function}(", arguments, ").contiguous()", depth)
        else:
            lines = bracketed(f"returned = {function}(", arguments, ")", depth)
            lines += unpacked(results, "(value.contiguous() for value in returned if value is not None)", depth)
        comment = _comment(print_step(step), depth=2)
        if step.condition is None:
            return [*comment, *lines]
        return [*comment, f"if {self._python(step.condition)}:", *indented(lines)]

    def _library_argument(self, argument: LibraryArgument) -> str:
        if argument is None:
            return "None"
        if isinstance(argument, tuple):
            return f"[{', '.join(self._library_argument(item) for item in argument)}]"
        return self.rename(argument) if isinstance(argument, str) else self._python(argument)

    def allocated(self) -> list[TensorParameter]:
        """Results, and the scratch that a step uses; but for those that a library step makes before anything else
        touches them."""
        made: set[str] = set()
        seen: set[str] = set()
        for step in self.operation.steps:
            if isinstance(step, LibraryStep) and step.condition is None:
                made |= set(step.results) - seen
            seen |= _touched(step)
        scratch = (tensor for tensor in self.operation.scratch if tensor.name in seen)
        return [tensor for tensor in (*self.operation.results, *scratch) if tensor.name not in made]

    def _step_expressions(self) -> Iterable[Expression]:
        """What the steps other than launches evaluate at each call."""
        for step in self.operation.steps:
            if isinstance(step, Fill):
                yield step.value
            elif isinstance(step, LibraryStep):
                yield from _library_expressions(step.arguments)
                if step.condition is not None:
                    yield step.condition

    # names and dims

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launch lines, in order."""
        return tuple(step for step in self.operation.steps if isinstance(step, Launch))

    def _python(self, expression: Expression) -> str:
        return python_expression(expression, self.rename)

    def _size(self, size: tuple[Expression, Expression, Expression]) -> str:
        return tuple_text([self._python(part) for part in size])

    def _empty(self, tensor: TensorParameter, device: str) -> str:
        shape = tuple_text([self._python(dim) for dim in tensor.dims]) if tensor.dims else "()"
        return f"torch.empty({shape}, dtype=torch.{tensor.dtype.torch_name}, device={device})"

    def homes(self) -> dict[str, tuple[str, int]]:
        """Where each dim is read: the first tensor and position at which it stands alone."""
        homes: dict[str, tuple[str, int]] = {}
        scalars = {p.name for p in self.operation.parameters if isinstance(p, ScalarParameter)}
        for tensor in self.inputs:
            for position, dim in enumerate(tensor.dims):
                if isinstance(dim, Name) and dim.id not in scalars:
                    homes.setdefault(dim.id, (tensor.name, position))
        return homes

    def _bindings(self, expressions: Iterable[Expression]) -> list[str]:
        """Assignments of the dims that the expressions mention."""
        needed = frozenset().union(*map(free_names, expressions))
        homes = self.homes()
        lines = []
        for tensor in self.inputs:
            own = [dim.id if isinstance(dim, Name) else "" for dim in tensor.dims]
            read = [i for i, dim in enumerate(own) if dim in needed and homes.get(dim) == (tensor.name, i)]
            shape = f"{self.rename(tensor.name)}.shape"
            if len(read) == len(own) > 0:
                lines += unpacked([self.rename(dim) for dim in own], shape, 2)
            else:
                lines += [f"{self.rename(own[i])} = {shape}[{i}]" for i in read]
        return lines

    def dim_checks(self, tensor: TensorParameter) -> list[tuple[tuple[TensorParameter, int], Expression]]:
        """The dims that must equal something, rather than giving a dim its value."""
        homes = self.homes()
        return [
            ((tensor, position), dim)
            for position, dim in enumerate(tensor.dims)
            if not (isinstance(dim, Name) and homes.get(dim.id) == (tensor.name, position))
        ]


# --- below: text of parts


def dtype_and_shape(dtype: DType, dims: Iterable[object]) -> str:
    """``f32[B, D]``."""
    return f"{dtype}[{', '.join(map(str, dims))}]"


def names_in_steps(operation: Operation) -> frozenset[str]:
    """Every dim, number and tensor that a step is given. A number that is in none is baked into the kernels."""
    expressions: list[Expression] = []
    for step in operation.steps:
        match step:
            case Fill(_, value):
                expressions.append(value)
            case Launch():
                expressions += _expressions(step)
            case LibraryStep():
                expressions += _library_expressions(step.arguments)
    return frozenset().union(*map(free_names, expressions))


def _type_text(tensor: TensorParameter) -> str:
    return dtype_and_shape(tensor.dtype, tensor.dims)


def _conditions(
    checks: Sequence[tuple[tuple[TensorParameter, int], Expression]],
    inputs: Sequence[TensorParameter],
    rename: object,
) -> Iterable[tuple[str, TensorParameter]]:
    """Python that is true where a tensor's shape is not the plan's."""
    assert callable(rename)
    for tensor in inputs:
        own = [(position, dim) for (of, position), dim in checks if of is tensor]
        name = rename(tensor.name)
        if own and len(own) == len(tensor.dims):
            yield f"{name}.shape != {tuple_text([python_expression(dim, rename) for _, dim in own])}", tensor
        else:
            for position, dim in own:
                yield f"{name}.shape[{position}] != {python_expression(dim, rename)}", tensor


def _comment(text: str, depth: int) -> list[str]:
    width = LINE_LENGTH - len(INDENT) * depth
    return textwrap.wrap(text, width, initial_indent="# ", subsequent_indent="#     ", break_long_words=False)


def _attributes(launch: Launch) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in launch.attributes) + "}"


def _expressions(launch: Launch) -> Iterable[Expression]:
    yield from (*launch.grid, *launch.block, launch.shared_bytes)
    yield from (argument for argument in launch.template_arguments if isinstance(argument, Expression))
    yield from launch.arguments
    if launch.condition is not None:
        yield launch.condition


def _library_expressions(arguments: Iterable[LibraryArgument]) -> Iterable[Expression]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _library_expressions(argument)
        elif isinstance(argument, Expression):
            yield argument


def _touched(step: Fill | Launch | LibraryStep) -> set[str]:
    match step:
        case Fill(tensor):
            return {tensor}
        case Launch():
            return {argument.id for argument in step.arguments if isinstance(argument, Name)}
        case LibraryStep():
            names = {argument for argument in _flat(step.arguments) if isinstance(argument, str)}
            return names | set(step.results)


def _flat(arguments: Iterable[LibraryArgument]) -> Iterable[LibraryArgument]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        else:
            yield argument
