"""Describe one operation of a launch plan for its operator: names, schema, dims and allocations. Every printed function
takes all of the operator's arguments, in the operator's order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression, Name, Number, free_names
from kernel_lsp.core.plan import (
    Fill,
    KernelSignature,
    Launch,
    LibraryStep,
    Operation,
    ScalarParameter,
    TensorParameter,
    argument_expressions,
    launch_numbers,
    touched,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.export.python.python_text import (
    bracketed,
    indented,
    python_expression,
    python_identifier,
    rows,
    unpacked,
)
from kernel_lsp.plan.cuda_types import resolve_template, scalar_type
from kernel_lsp.plan.kernel_names import find_signature

NAMESPACE = "kernel_lsp"
"""Namespace in `torch.ops` of the operators of one-file results."""
RUNTIME = "_runtime"
"""Name of the shared runtime module in an operator file."""
SCHEMA_TYPES = {"float": "float", "int": "SymInt", "bool": "bool"}


MAX_DEFINITION_LINES = 3
"""Lines of a definition with all parameters on one line."""
MAX_ELEMENTS = (1 << 31) - (1 << 24)
"""Maximum elements per tensor. Most kernels count elements in 32 bits, and a loop over them exceeds the last index by
up to the number of threads of its grid."""


@dataclass(frozen=True)
class OperatorArgument:
    """An argument of the operator. `fixed` is the only number that the kernels support, if they are specialized for
    one."""

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
        """Print ``x: Tensor``, a parameter without default."""
        return f"{self.name}: {self.annotation}"


@dataclass(frozen=True)
class OperationText:
    """Prints the parts of `operation`. `name` is its name in the operator file."""

    name: str
    operation: Operation
    arguments: tuple[OperatorArgument, ...]
    signatures: tuple[KernelSignature, ...]
    reserved: frozenset[str]
    namespace: str = NAMESPACE

    @property
    def qualified_name(self) -> str:
        """Return the operator's qualified name in Python: ``torch.ops.kernel_lsp.rms_norm``."""
        return f"torch.ops.{self.namespace}.{self.name}"

    @property
    def returned(self) -> tuple[TensorParameter, ...]:
        """Return the tensors that the operator returns: results with a buffer, and what it keeps for a backward."""
        return self.operation.keepable

    @property
    def returns(self) -> str:
        """Return the operator's return annotation."""
        return _annotation(len(self.returned))

    @property
    def result_annotation(self) -> str:
        """Return the return annotation of the function that users call."""
        return _annotation(len(self.operation.outputs))

    @property
    def schema(self) -> str:
        """Return the schema in the form that `torch.library.Library.define` takes."""
        arguments = ", ".join(f"{argument.schema_type} {argument.name}" for argument in self.arguments)
        n = len(self.returned)
        results = "Tensor" if n == 1 else f"({', '.join(['Tensor'] * n)})"
        return f"{self.name}({arguments}) -> {results}"

    @property
    def argument_names(self) -> list[str]:
        """Return the arguments in the form in which a call passes them on."""
        return [argument.name for argument in self.arguments]

    @property
    def inputs(self) -> tuple[TensorParameter, ...]:
        """Return the tensors that the kernels read."""
        return tuple(p for p in self.operation.parameters if isinstance(p, TensorParameter))

    @property
    def conditions(self) -> tuple[Expression, ...]:
        """Return the conditions on dims and numbers: the plan's `where:` lines, and the maximum size of each tensor."""
        stated = (condition.expression for condition in self.operation.where)
        return without_implied((*stated, *countable(self.operation)), {*self.homes()})

    def rename(self, name: str) -> str:
        """Return the Python name of a tensor, a dim or a scalar of the plan."""
        return python_identifier(name, self.reserved)

    def define(self, suffix: str, returns: str, head: Sequence[str], body: Sequence[str]) -> list[str]:
        """Print a function of the operator's arguments. Where they fill several lines, it takes them together and
        unpacks them in rows, below the lines of `head`."""
        before, after = f"def {self.name}{suffix}(", f") -> {returns}:"
        definition = bracketed(before, [argument.declaration for argument in self.arguments], after)
        if len(definition) > MAX_DEFINITION_LINES:
            definition = bracketed(before, ["*arguments: Any"], after)
            head = [*head, *_unpacking(self.argument_names)]
        return [*definition, *indented([*head, *body])]

    def signature(self, launch: Launch) -> KernelSignature:
        """Return the kernel that a line launches. Raises PlanError when there is none."""
        signature = find_signature(
            launch, self.signatures, {tensor.name: tensor.dtype for tensor in self.operation.tensors}
        )
        if signature is None or len(signature.parameters) != len(launch.arguments):
            raise PlanError(f"no kernel '{launch.kernel}' that takes these arguments", line=launch.span.line)
        return signature

    def number_types(self, launch: Launch) -> list[str]:
        """Return the C++ type of each argument that is a number, and "" for pointers. Raises PlanError for any other
        type."""
        signature = self.signature(launch)
        templates = tuple(argument if isinstance(argument, str) else "" for argument in launch.template_arguments)
        types = []
        for parameter in signature.parameters:
            element = None if parameter.is_pointer else resolve_template(parameter.element, signature, templates)
            cuda_type = None if element is None else scalar_type(element)
            if cuda_type is None and not parameter.is_pointer:
                message = f"the parameter '{parameter.name}' of '{launch.kernel}' is {parameter.element}, no number"
                raise PlanError(message, line=launch.span.line)
            types.append(cuda_type or "")
        return types

    @property
    def library_functions(self) -> tuple[str, ...]:
        """Return the vendor library functions among the steps."""
        steps = (step for step in self.operation.steps if isinstance(step, LibraryStep))
        return tuple(dict.fromkeys(step.function for step in steps))

    def allocated(self) -> list[TensorParameter]:
        """Return the results, and the scratch that a step uses, without those that a library step allocates."""
        made: set[str] = set()
        seen: set[str] = set()
        for step in self.operation.steps:
            if isinstance(step, LibraryStep) and step.condition is None:
                made |= set(step.results) - seen
            seen |= touched(step)
        scratch = (tensor for tensor in self.operation.scratch if tensor.name in seen)
        return [tensor for tensor in (*self.returned, *scratch) if tensor.name not in made]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Return the launch lines, in order."""
        return tuple(step for step in self.operation.steps if isinstance(step, Launch))

    def python(self, expression: Expression) -> str:
        """Print an expression of the plan with the Python names of its operands."""
        return python_expression(expression, self.rename)

    def bindings(self, expressions: Iterable[Expression]) -> list[str]:
        """Assign the dims that the expressions mention, of tensors that may have another rank."""
        needed = frozenset().union(*map(free_names, expressions))
        homes = self.homes()
        lines = []
        for tensor in self.inputs:
            own = [dim.id if isinstance(dim, Name) else "" for dim in tensor.dims]
            read = [i for i, dim in enumerate(own) if dim in needed and homes.get(dim) == (tensor.name, i)]
            shape = f"{RUNTIME}.sizes({self.rename(tensor.name)}, {len(own)})"
            if len(read) > 1 or len(read) == len(own) > 0:
                lines += unpacked([self.rename(own[i]) if i in read else "_" for i in range(len(own))], shape, 2)
            else:
                lines += [f"{self.rename(own[i])} = {shape}[{i}]" for i in read]
        return lines

    def homes(self) -> dict[str, tuple[str, int]]:
        """Return the source of each dim: the first tensor and position at which it stands alone."""
        homes: dict[str, tuple[str, int]] = {}
        scalars = {p.name for p in self.operation.parameters if isinstance(p, ScalarParameter)}
        for tensor in self.inputs:
            for position, dim in enumerate(tensor.dims):
                if isinstance(dim, Name) and dim.id not in scalars:
                    homes.setdefault(dim.id, (tensor.name, position))
        return homes

    def dim_checks(self, tensor: TensorParameter) -> list[tuple[tuple[TensorParameter, int], Expression]]:
        """Return the dims that must equal a value, as opposed to those that define a dim."""
        homes = self.homes()
        return [
            ((tensor, position), dim)
            for position, dim in enumerate(tensor.dims)
            if not (isinstance(dim, Name) and homes.get(dim.id) == (tensor.name, position))
        ]


def _annotation(n_tensors: int) -> str:
    return "Tensor" if n_tensors == 1 else f"tuple[{', '.join(['Tensor'] * n_tensors)}]"


def dtype_and_shape(dtype: DType, dims: Iterable[object]) -> str:
    """Return ``f32[B, D]``."""
    return f"{dtype}[{', '.join(map(str, dims))}]"


def names_in_steps(operation: Operation) -> frozenset[str]:
    """Return every dim, number and tensor that a step takes. A number used by no step is a constant in the kernels."""
    expressions: list[Expression] = []
    for step in operation.steps:
        match step:
            case Fill(_, value):
                expressions.append(value)
            case Launch():
                expressions += [*launch_numbers(step), *step.arguments]
            case LibraryStep():
                expressions += argument_expressions(step.arguments)
    return frozenset().union(*map(free_names, expressions))


def _unpacking(names: list[str]) -> list[str]:
    """Print the assignments of ``arguments`` to names, as many to a line as fit."""
    *heads, last = rows(names, depth=7)
    source, lines = "arguments", []
    for row in heads:
        lines.append(f"{', '.join(row)}, *more = {source}")
        source = "more"
    return [*lines, *unpacked(last, source)]


def countable(operation: Operation) -> tuple[Expression, ...]:
    """Return the conditions that limit each tensor of non-fixed size to `MAX_ELEMENTS`. Dims are at least 1, so a
    tensor whose dims are all among those of another needs no condition of its own."""
    shapes = list(dict.fromkeys(tensor.dims for tensor in _tensors(operation)))
    counts = [Counter(map(str, dims)) for dims in shapes]
    return tuple(
        Binary("<=", reduce(lambda left, right: Binary("*", left, right), dims), Constant(MAX_ELEMENTS))
        for dims, own in zip(shapes, counts, strict=True)
        if any(map(free_names, dims)) and not any(own < other for other in counts)
    )


def without_implied(conditions: Sequence[Expression], dims: Collection[str]) -> tuple[Expression, ...]:
    """Return the conditions without bounds on products that tighter bounds on the same dims imply, as ``B * 64 <= N``
    beside ``B * 256 <= N``."""
    bounds = {condition: _bound(condition, dims) for condition in dict.fromkeys(conditions)}
    tightest: dict[tuple[str, ...], float] = {}
    for bound in bounds.values():
        if bound is not None:
            tightest[bound[0]] = min(bound[1], tightest.get(bound[0], bound[1]))
    kept = [condition for condition, bound in bounds.items() if bound is None or bound[1] == tightest[bound[0]]]
    return tuple({bounds[each] or each: each for each in reversed(kept)}.values())[::-1]


def _bound(condition: Expression, dims: Collection[str]) -> tuple[tuple[str, ...], float] | None:
    """Return the dims of a product and its bound over its constant factor; None for other conditions."""
    if not isinstance(condition, Binary) or condition.operator != "<=" or not isinstance(condition.right, Constant):
        return None
    factors = _factors(condition.left)
    names = [factor.id for factor in factors if isinstance(factor, Name) and factor.id in dims]
    numbers = [factor.value for factor in factors if isinstance(factor, Constant) and factor.value > 0]
    if len(names) + len(numbers) < len(factors):
        return None
    return tuple(sorted(names)), condition.right.value / math.prod(numbers)


def _factors(expression: Expression) -> list[Expression]:
    if isinstance(expression, Binary) and expression.operator == "*":
        return [*_factors(expression.left), *_factors(expression.right)]
    return [expression]


def _tensors(operation: Operation) -> Iterator[TensorParameter]:
    yield from (parameter for parameter in operation.parameters if isinstance(parameter, TensorParameter))
    yield from operation.results
    yield from operation.kept
    yield from operation.scratch
