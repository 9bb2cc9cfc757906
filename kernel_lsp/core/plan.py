"""The launch plan in the leading comment block of a `.cu` file, and its binding to concrete shapes.

`kernel_lsp.plan` parses, prints and binds it; `docs/kernel-format.md` is the user's description.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression, Name
from kernel_lsp.core.model import Noun

PLAN_VERSION = 1
ScalarType = Literal["float", "int", "bool"]


@dataclass(frozen=True)
class Span:
    """A stretch of one line. `line` and both columns are 1-based; `end_column` is one past the last character."""

    line: int
    column: int
    end_column: int


NO_SPAN = Span(1, 1, 1)


@dataclass(frozen=True)
class TensorParameter:
    """A tensor of an operation: a parameter, a result or a scratch buffer. Contiguous, row-major.

    `same_as` names the tensor that a backward returns for this result, too: an earlier result or a gradient it is
    given. Such a result has no buffer."""

    name: str
    dtype: DType
    dims: tuple[Expression, ...]
    span: Span = field(default=NO_SPAN, compare=False)
    same_as: str = ""


@dataclass(frozen=True)
class ScalarParameter:
    """A Python number argument of the operator."""

    name: str
    type: ScalarType
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True)
class Condition:
    """One `where:` line; the operator falls back to the PyTorch reference when it does not hold."""

    expression: Expression
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True)
class Fill:
    """`fill: tensor = value`: set every element before the steps that follow."""

    tensor: str
    value: Expression
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True)
class Launch:
    """`launch[condition]: kernel<template_arguments><<<grid, block, shared_bytes>>>(arguments) attribute=value`.

    `grid` and `block` always have three entries. An argument is the name of a tensor, or an expression over dims and
    scalars. `attributes` are pairs such as ``("cooperative", 1)``.
    """

    kernel: str
    template_arguments: tuple[Expression | str, ...]
    grid: tuple[Expression, Expression, Expression]
    block: tuple[Expression, Expression, Expression]
    shared_bytes: Expression
    arguments: tuple[Expression, ...]
    condition: Expression | None = None
    attributes: tuple[tuple[str, int], ...] = ()
    span: Span = field(default=NO_SPAN, compare=False)
    argument_spans: tuple[Span, ...] = field(default=(), compare=False)


LibraryArgument = str | Expression | tuple["LibraryArgument", ...] | None
"""The name of a tensor (str), an expression, a list of them, or `none`."""


@dataclass(frozen=True)
class LibraryStep:
    """`library: aten::mm(a, b) -> (c)`: a vendor library runs this step, through ATen, and every report says so."""

    function: str
    arguments: tuple[LibraryArgument, ...]
    results: tuple[str, ...]
    condition: Expression | None = None
    span: Span = field(default=NO_SPAN, compare=False)


Step = Fill | Launch | LibraryStep


@dataclass(frozen=True)
class Operation:
    """One `op:` section: a signature, its contract, its tensors and its steps in order.

    `kept` are tensors that a forward writes for its backward. `n_before` of the first steps only make what a backward
    is given: see `kernel_lsp.plan.renaming`.
    """

    name: str
    parameters: tuple[TensorParameter | ScalarParameter, ...]
    results: tuple[TensorParameter, ...]
    where: tuple[Condition, ...] = ()
    scratch: tuple[TensorParameter, ...] = ()
    steps: tuple[Step, ...] = ()
    span: Span = field(default=NO_SPAN, compare=False)
    kept: tuple[TensorParameter, ...] = ()
    n_before: int = 0

    @property
    def outputs(self) -> tuple[TensorParameter, ...]:
        """Return the results with a buffer of their own, which steps write."""
        return tuple(result for result in self.results if not result.same_as)

    @property
    def tensors(self) -> tuple[TensorParameter, ...]:
        """Return every tensor in scope of the steps: tensor parameters, outputs, kept tensors, scratch."""
        inputs = tuple(p for p in self.parameters if isinstance(p, TensorParameter))
        return inputs + self.outputs + self.kept + self.scratch

    @property
    def keepable(self) -> tuple[TensorParameter, ...]:
        """Return what a backward may be given of a forward, beside its parameters: outputs and kept tensors."""
        return self.outputs + self.kept


@dataclass(frozen=True)
class LaunchPlan:
    """The whole plan. `task` is the text of the `task:` line, a path relative to the `.cu` file."""

    operations: tuple[Operation, ...]
    task: str | None = None
    version: int = PLAN_VERSION

    def operation(self, name: str) -> Operation | None:
        return next((operation for operation in self.operations if operation.name == name), None)

    @property
    def forward(self) -> Operation:
        """The first operation."""
        return self.operations[0]

    @property
    def backward(self) -> Operation | None:
        """The operation named ``<forward>_backward``."""
        return self.operation(f"{self.forward.name}_backward")


@dataclass(frozen=True)
class KernelParameter:
    """A parameter of a `__global__` function. `element` is the pointee of a pointer, or the type of a value, normalised
    without `const`, `__restrict__` and insignificant spaces."""

    name: str
    element: str
    is_pointer: bool
    is_const: bool


@dataclass(frozen=True)
class KernelSignature:
    """A `__global__` function as declared in the source. A launch may omit trailing template parameters with
    `template_defaults`."""

    name: str
    template_parameters: tuple[str, ...]
    parameters: tuple[KernelParameter, ...]
    template_defaults: tuple[str, ...] = ()
    span: Span = field(default=NO_SPAN, compare=False)

    @property
    def takes_any_number(self) -> bool:
        """Return True when the last template parameter is a pack: ``Ns...``."""
        return bool(self.template_parameters) and self.template_parameters[-1].endswith("...")

    @property
    def n_template_defaults(self) -> int:
        return len(self.template_defaults)


class BoundTensor(Noun):
    """A tensor with its concrete shape. `role` is its owner."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: Literal["input", "output", "scratch"]

    @property
    def n_elements(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def n_bytes(self) -> int:
        return self.n_elements * self.dtype.itemsize


class BoundFill(Noun):
    """Set every element of `tensor` to `value`."""

    kind: Literal["fill"] = "fill"
    tensor: str
    value: float | int

    @property
    def tensors(self) -> frozenset[str]:
        """Return the names of the tensors that the step reads or writes."""
        return frozenset((self.tensor,))


class TensorArgument(Noun):
    """A pointer to the first element of a tensor."""

    kind: Literal["tensor"] = "tensor"
    tensor: str


class ScalarArgument(Noun):
    """A value passed by copy. `cuda_type` is the C++ type of the kernel's parameter, e.g. ``int`` or ``float``."""

    kind: Literal["scalar"] = "scalar"
    cuda_type: str
    value: float | int | bool


class BoundLaunch(Noun):
    """One kernel launch. `kernel` is the C++ name expression, e.g. ``rms_norm_rows<256>``, which the compiler maps to a
    symbol. `line` is the line of the launch in the `.cu` file."""

    kind: Literal["launch"] = "launch"
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[TensorArgument | ScalarArgument, ...]
    attributes: dict[str, int] = {}
    line: int = 1

    @property
    def tensors(self) -> frozenset[str]:
        """Return the names of the tensors that the step reads or writes."""
        return frozenset(argument.tensor for argument in self.arguments if isinstance(argument, TensorArgument))

    @property
    def n_blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def n_threads_per_block(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


class BoundLibraryStep(Noun):
    """A vendor library call. Arguments are JSON values; a tensor is ``{"tensor": name}``."""

    kind: Literal["library"] = "library"
    function: str
    arguments: tuple[object, ...]
    results: tuple[str, ...]

    @property
    def tensors(self) -> frozenset[str]:
        """Return the names of the tensors that the step reads or writes."""
        return frozenset((*self.results, *tensors_in(self.arguments)))


BoundStep = BoundFill | BoundLaunch | BoundLibraryStep


class BoundOperation(Noun):
    """An operation for one set of shapes and scalars."""

    name: str
    dims: dict[str, int]
    tensors: tuple[BoundTensor, ...]
    steps: tuple[BoundStep, ...]
    returns: dict[str, str] = {}
    """The tensor that holds each result, by the result's name, in declared order; the outputs where empty."""
    n_before: int = 0
    """Number of first steps that only make what a backward is given of its forward: they are not timed."""

    def tensor(self, name: str) -> BoundTensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    @property
    def inputs(self) -> list[BoundTensor]:
        return self._in_role("input")

    @property
    def outputs(self) -> list[BoundTensor]:
        return self._in_role("output")

    @property
    def scratch(self) -> list[BoundTensor]:
        return self._in_role("scratch")

    def _in_role(self, role: Literal["input", "output", "scratch"]) -> list[BoundTensor]:
        return [tensor for tensor in self.tensors if tensor.role == role]

    @property
    def launches(self) -> list[BoundLaunch]:
        """Return the launches among the steps."""
        return [step for step in self.steps if isinstance(step, BoundLaunch)]

    @property
    def n_blocks(self) -> int:
        """Return the blocks of all launches."""
        return sum(launch.n_blocks for launch in self.launches)

    @property
    def n_elements(self) -> int:
        """Return the elements of all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def results(self) -> tuple[tuple[BoundTensor, BoundTensor], ...]:
        """Return each declared result with the tensor that holds it: all that a judge compares."""
        names = self.returns or {tensor.name: tensor.name for tensor in self.outputs}
        held = [(name, self.tensor(holder)) for name, holder in names.items()]
        return tuple((holder.model_copy(update={"name": name}), holder) for name, holder in held)

    @property
    def n_launches_before(self) -> int:
        """Count the launches among the steps that are not timed."""
        return sum(isinstance(step, BoundLaunch) for step in self.steps[: self.n_before])

    @property
    def before(self) -> BoundOperation:
        """Return the operation of the steps that are not timed: its outputs are what `timed` takes of it."""
        return self._part(self.steps[: self.n_before], "output").model_copy(update={"returns": {}})

    @property
    def timed(self) -> BoundOperation:
        """Return the operation of the other steps, whose inputs are also what those before them made; itself where
        there are none before."""
        return self._part(self.steps[self.n_before :], "input") if self.n_before else self

    def _part(self, steps: tuple[BoundStep, ...], role: Literal["input", "output"]) -> BoundOperation:
        """Return the operation of some steps, in which what the first ones hand to the others has this role."""
        first, others, used = (
            frozenset[str]().union(*(step.tensors for step in some))
            for some in (self.steps[: self.n_before], self.steps[self.n_before :], steps)
        )
        handed = {tensor.name for tensor in self.tensors if tensor.role != "input"} & first & others
        tensors = tuple(
            tensor.model_copy(update={"role": role}) if tensor.name in handed else tensor
            for tensor in self.tensors
            if tensor.name in used
        )
        return self.model_copy(update={"tensors": tensors, "steps": steps, "n_before": 0})


def tensors_in(argument: object) -> Iterator[str]:
    """Yield the names of the tensors among a library step's arguments, in order."""
    if isinstance(argument, dict) and "tensor" in argument:
        yield argument["tensor"]
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from tensors_in(each)


def launch_numbers(launch: Launch) -> Iterator[Expression]:
    """Yield the expressions that determine a launch: grid, block, shared memory, template arguments and condition."""
    yield from launch.grid
    yield from launch.block
    yield launch.shared_bytes
    yield from (argument for argument in launch.template_arguments if isinstance(argument, Expression))
    if launch.condition is not None:
        yield launch.condition


def flat_arguments(arguments: Iterable[LibraryArgument]) -> Iterator[str | Expression]:
    """Return the names and expressions among a library call's arguments, including nested lists."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from flat_arguments(argument)
        elif argument is not None:
            yield argument


def argument_expressions(arguments: Iterable[LibraryArgument]) -> Iterator[Expression]:
    """Return the expressions among the arguments."""
    return (argument for argument in flat_arguments(arguments) if isinstance(argument, Expression))


def touched(step: Step) -> set[str]:
    """Return the names of the tensors that a step reads or writes."""
    match step:
        case Fill(tensor):
            return {tensor}
        case Launch():
            return {argument.id for argument in step.arguments if isinstance(argument, Name)}
        case LibraryStep():
            names = {argument for argument in flat_arguments(step.arguments) if isinstance(argument, str)}
            return names | set(step.results)
