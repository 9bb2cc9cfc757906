"""Register lowering rules, build tensors for them, and read the arguments of an ATen call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Expression, ExpressionError, free_names, parse
from kernel_lsp.core.expression import Constant as ExpressionConstant
from kernel_lsp.core.task import GraphNode, TensorType
from kernel_lsp.errors import TargetError, page
from kernel_lsp.generate.identifiers import identifier
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index
from kernel_lsp.generate.ir.scalar import Access, CallerNumber, Constant, Scalar, cast, index_value, operation
from kernel_lsp.generate.ir.sizes import Sizes
from kernel_lsp.generate.ir.sizes import reshape as reshape_index
from kernel_lsp.generate.ir.tensor import (
    Buffer,
    Contraction,
    CopiedFactor,
    Definition,
    LibraryCall,
    Phases,
    Pointwise,
    Reduction,
    Tensor,
)
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.structure.window_gradient_patterns import WindowRecords

Body = Callable[[tuple[Index, ...]], Scalar]
Shape = tuple[Index, ...]
NOTHING_GIVEN: Mapping[int, str] = {}


RESULT_NAMES = {
    "max_pool1d_with_indices": "max_pool",
    "max_pool2d_with_indices": "max_pool",
    "max_pool3d_with_indices": "max_pool",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm_legit": "batch_norm",
    "native_batch_norm_legit_no_training": "batch_norm",
    "linalg_vector_norm": "norm",
    "to_copy": "converted",
    "constant_pad_nd": "padded",
    "add": "total",
    "sub": "difference",
    "mul": "product",
    "div": "ratio",
    "where": "chosen",
    "max_pool2d_with_indices_backward": "grad_input",
    "threshold_backward": "grad_relu",
}
"""Names of results by operator, used where the user's code has no name; other operators give their own name."""


class Builder:
    """Makes tensors for one graph, in order."""

    def __init__(
        self,
        sizes: Sizes,
        fixed: frozenset[str],
        given: Mapping[int, str],
        n_reads: Mapping[str, int],
        workload: Workload | None,
    ) -> None:
        """`given` names tensors that lie in memory, by number: no kernel computes them. `n_reads` counts the readers of
        each value of the graph. With a `workload`, factors of contractions may be summed before the products."""
        self.sizes, self.n_reads, self.workload = sizes, n_reads, workload
        self._given, self.given = given, dict[str, Tensor]()
        """The first tensor of each given name."""
        self.fixed = fixed
        """Numbers of the caller that stay constants."""
        self.taken: set[str] = set()
        """Numbers of the caller that a rule took as parameters."""
        self.settled: set[str] = set()
        """Numbers of the caller that a rule needs as constants."""
        self.tensors: list[Tensor] = []
        self.windows = WindowRecords()
        self._n_variables = 0
        self._node: GraphNode | None = None

    def at_node(self, node: GraphNode) -> None:
        """Assign tensors created later to `node`."""
        self._node = node

    def buffer(self, name: str, dtype: DType, shape: Shape) -> Tensor:
        """Return the tensor of an argument of the operation."""
        return self.tensor(name, dtype, shape, Buffer())

    def tensor(self, name: str, dtype: DType, shape: Shape, definition: Definition) -> Tensor:
        source = self._node.source if self._node else None
        # Even numbers leave room for the first half of a split reduction, just before itself.
        serial = 2 * len(self.tensors)
        if serial in self._given:
            definition = self._given_definition(self._given[serial], tuple(shape))
        made = Tensor(name, serial, dtype, tuple(shape), definition, source)
        if serial in self._given:
            self.given.setdefault(self._given[serial], made)
        self.tensors.append(made)
        return made

    def _given_definition(self, name: str, shape: Shape) -> Definition:
        """Return the definition of a tensor in memory; that of a second one of a name reads the first."""
        if name not in self.given:
            return Buffer()
        variables = self.variables(shape)
        return Pointwise(variables, Access(self.given[name], positions(variables)))

    def pointwise(self, dtype: DType, shape: Shape, body: Body, *, name: str = "") -> Tensor:
        """Return a tensor whose element at an index is ``body(index)``, converted to `dtype`."""
        variables = self.variables(shape)
        scalar = cast(body(positions(variables)), dtype)
        return self.tensor(name or self.result_name(), dtype, shape, Pointwise(variables, scalar))

    def reduction(
        self,
        kind: str,
        dtype: DType,
        source_shape: Shape,
        axes: Sequence[int],
        body: Body,
        *,
        name: str = "",
    ) -> Tensor:
        """Combine `body` over `axes` of `source_shape`. The result has the other axes, in order."""
        if all(source_shape[axis].constant == 1 for axis in axes):
            return self._trivial_reduction(kind, dtype, source_shape, axes, body, name)
        domain = self.variables(source_shape, prefix="r")
        kept = tuple(variable for axis, variable in enumerate(domain) if axis not in axes)
        reduced = tuple(variable for axis, variable in enumerate(domain) if axis in axes)
        definition = Reduction(kind, kept, reduced, domain, body(positions(domain)))
        shape = tuple(size for axis, size in enumerate(source_shape) if axis not in axes)
        return self.tensor(name or self.result_name(), dtype, shape, definition)

    def _trivial_reduction(
        self, kind: str, dtype: DType, source_shape: Shape, axes: Sequence[int], body: Body, name: str
    ) -> Tensor:
        """Return the reduction of a single element: itself, or position 0."""
        shape = tuple(size for axis, size in enumerate(source_shape) if axis not in axes)

        def element(index: tuple[Index, ...]) -> Scalar:
            rest = iter(index)
            full = tuple(ZERO if axis in axes else next(rest) for axis in range(len(source_shape)))
            return Constant(0, DType.I64) if kind in ("argmax", "argmin") else body(full)

        return self.pointwise(dtype, shape, element, name=name)

    def contraction(
        self,
        dtype: DType,
        shape: Shape,
        reduced_shape: Shape,
        factors: Callable[[tuple[Index, ...], tuple[Index, ...]], tuple[Scalar, Scalar]],
        axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
        *,
        name: str = "",
        library: LibraryCall | None = None,
        phases: Callable[[tuple[Variable, ...]], Phases] | None = None,
        copied: Callable[[tuple[Index, ...], tuple[Index, ...]], CopiedFactor] | None = None,
    ) -> Tensor:
        """Return a sum of products over `reduced_shape`. `axes` are the (batch, row, column) axes of the result;
        `phases` returns the form by phases over the result's variables, `copied` the right factor by a copy."""
        variables = self.variables(shape)
        reduced = self.variables(reduced_shape, names=tap_names(len(reduced_shape)))
        left, right = factors(positions(variables), positions(reduced))
        body = multiply(left, right, accumulation_dtype(dtype))
        contraction = Contraction(left, right, *axes, library, phases=None if phases is None else phases(variables))
        if copied is not None:
            contraction = replace(contraction, copied=copied(positions(variables), positions(reduced)))
        definition = Reduction("sum", variables, reduced, (*variables, *reduced), body, contraction)
        return self.tensor(name or self.result_name(), dtype, shape, definition)

    def variables(
        self, shape: Sequence[Index], prefix: str = "i", *, names: Sequence[str] = ()
    ) -> tuple[Variable, ...]:
        """Return a fresh index variable per dim."""
        made = []
        for axis, size in enumerate(shape):
            made.append(Variable(names[axis] if names else f"{prefix}{axis}", self._n_variables, size))
            self._n_variables += 1
        return tuple(made)

    def result_name(self) -> str:
        """Return a name: the variable that the user's line assigns, else the ATen operator."""
        if self._node is None:
            return "value"
        operator = self._node.op.split(".")[1].strip("_")
        return identifier(self._node.user_name or RESULT_NAMES.get(operator, operator))

    def view(self, tensor: Tensor, shape: Shape, to_source: Callable[[tuple[Index, ...]], Sequence[Index]]) -> Tensor:
        """Return a view whose element `index` is element ``to_source(index)`` of `tensor`."""
        return self.pointwise(tensor.dtype, shape, lambda index: Access(tensor, to_source(index)), name=tensor.name)

    def reshaped(self, tensor: Tensor, shape: Shape) -> Tensor:
        return self.view(tensor, shape, lambda index: reshape_index(index, shape, tensor.shape))

    def unsqueezed(self, tensor: Tensor, axes: Sequence[int]) -> Tensor:
        """Return the tensor with dims of size 1 at `axes` of the result."""
        rank = len(tensor.shape) + len(axes)
        kept = [axis for axis in range(rank) if axis not in axes]
        shape = [ONE] * rank
        for axis, size in zip(kept, tensor.shape, strict=True):
            shape[axis] = size
        return self.view(tensor, tuple(shape), lambda index: [index[axis] for axis in kept])

    def same_size(self, left: Index, right: Index) -> bool:
        return self.sizes.same(left, right)


def positions(variables: Sequence[Variable]) -> tuple[Index, ...]:
    """Return the variables as an index; 0 where there is only one position."""
    return tuple(ZERO if variable.extent.constant == 1 else as_index(variable) for variable in variables)


def read(tensor: Tensor, index: Sequence[Index]) -> Scalar:
    """Return the element of `tensor` that broadcasts to `index` of a shape of the same or a higher rank."""
    aligned = index[len(index) - len(tensor.shape) :]
    return Access(tensor, [ZERO if size.constant == 1 else i for i, size in zip(aligned, tensor.shape, strict=True)])


def tap_names(n_dims: int) -> tuple[str, ...]:
    """Return the loop names of a sum of products: the channel, then the taps of the kernel."""
    return {1: ("k",), 2: ("ci", "k"), 3: ("ci", "kh", "kw"), 4: ("ci", "kd", "kh", "kw")}.get(
        n_dims, tuple(f"k{axis}" for axis in range(n_dims))
    )


def accumulation_dtype(dtype: DType) -> DType:
    """Return the accumulator's type for sums of this element type."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def multiply(left: Scalar, right: Scalar, dtype: DType) -> Scalar:
    return operation("mul", dtype, cast(left, dtype), cast(right, dtype))


class Call:
    """One ATen call: its arguments by position or name, and its result types."""

    def __init__(self, node: GraphNode, builder: Builder, values: dict[str, tuple[Tensor | None, ...]]) -> None:
        self.node, self.builder, self._values = node, builder, values

    def of(self, node: GraphNode) -> Call:
        """Return another call with the same values."""
        return Call(node, self.builder, self._values)

    def is_read_once(self, tensor: Tensor) -> bool:
        """Return True unless a value of the graph is this tensor and has several readers."""
        names = (name for name, results in self._values.items() if tensor in results)
        return all(self.builder.n_reads.get(name, 0) <= 1 for name in names)

    def fail(self, reason: str) -> NoReturn:
        """Raise TargetError with the operator and the user's line."""
        source = self.node.source
        raise TargetError(
            f"the generator cannot do {self.node.op}: {reason}",
            file=source.file if source else None,
            line=source.line if source else None,
            next_step="leave this call outside the target, or write it with operators that the generator knows"
            f" ({page('generator.md')} lists them)",
        )

    def raw(self, position: int, name: str, default: Any = None) -> Any:
        """Return the argument as JSON, with numbers of the caller as constants."""
        expression = self._caller_number(position, name)
        if expression is not None:
            self.builder.settled |= free_names(expression)
        return self._at(position, name, default)

    def _at(self, position: int, name: str, default: Any = None) -> Any:
        if position < len(self.node.arguments):
            return self.node.arguments[position]
        return self.node.keywords.get(name, default)

    def is_given(self, position: int, name: str) -> bool:
        return self._at(position, name) is not None

    def tensor(self, position: int, name: str = "self") -> Tensor:
        found = self.optional_tensor(position, name)
        if found is None:
            self.fail(f"its argument '{name}' is no tensor")
        return found

    def optional_tensor(self, position: int, name: str) -> Tensor | None:
        return self._resolve(self.raw(position, name))

    def tensors(self, position: int, name: str = "tensors") -> list[Tensor | None]:
        return [self._resolve(entry) for entry in self.raw(position, name, [])]

    def is_tensor(self, position: int, name: str = "other") -> bool:
        raw = self._at(position, name)
        return isinstance(raw, dict) and "node" in raw

    def number(self, position: int, name: str, default: float | int | bool | None = None) -> float | int | bool:
        """Return a Python number fixed by the capture."""
        value = self.optional_number(position, name, default)
        if value is None:
            self.fail(f"its argument '{name}' is missing")
        return value

    def optional_number(
        self, position: int, name: str, default: float | int | bool | None = None
    ) -> float | int | bool | None:
        raw = self.raw(position, name, default)
        raw = default if raw is None else raw
        if isinstance(raw, dict) and "float" in raw:
            return float(raw["float"])
        if isinstance(raw, dict) and "expression" in raw:
            constant = self.size_of(raw["expression"]).constant
            if constant is None:
                self.fail(f"its argument '{name}' depends on a size")
            return constant
        if raw is not None and not isinstance(raw, bool | int | float):
            self.fail(f"its argument '{name}' is no number")
        return raw

    def integer(self, position: int, name: str, default: int | None = None) -> int:
        return int(self.number(position, name, default))

    def scalar(self, position: int, name: str, dtype: DType, default: float | None = None) -> Scalar:
        """Return a number argument as a value; sizes and numbers of the caller stay symbolic."""
        raw = self._at(position, name, default)
        expression = self._caller_number(position, name)
        if expression is not None:
            self.builder.taken |= free_names(expression)
            return cast(CallerNumber(expression, DType.I64 if type(raw) is int else DType.F64), dtype)
        if isinstance(raw, dict) and "expression" in raw:
            return cast(self._size_arithmetic(parse(str(raw["expression"])), dtype), dtype)
        return cast(constant(self.number(position, name, default)), dtype)

    def _caller_number(self, position: int, name: str) -> Expression | None:
        """Return the argument in terms of the caller's numbers; None for a constant."""
        key = str(position) if position < len(self.node.arguments) else name
        expression = parse(self.node.scalars[key]) if key in self.node.scalars else None
        return None if expression is None or free_names(expression) & self.builder.fixed else expression

    def _size_arithmetic(self, expression: Expression, dtype: DType) -> Scalar:
        """Return a number computed from sizes, such as ``1.0 / (B * H * W)``."""
        floating = dtype if dtype.is_floating else DType.F64
        match expression:
            case ExpressionConstant(value):
                return constant(value)
            case Binary("/", left, right):
                parts = [cast(self._size_arithmetic(side, floating), floating) for side in (left, right)]
                return operation("div", floating, *parts)
            case Binary("+" | "-" | "*" as symbol, left, right) if _has_division(expression):
                parts = [cast(self._size_arithmetic(side, floating), floating) for side in (left, right)]
                return operation(_ARITHMETIC[symbol], floating, *parts)
        return index_value(self.size_of(str(expression)))

    def size(self, position: int, name: str, default: int | None = None) -> Index:
        """Return a size argument, symbolic or not."""
        return self._as_size(self.raw(position, name, default), name)

    def sizes(self, position: int, name: str) -> tuple[Index, ...]:
        return tuple(self._as_size(entry, name) for entry in self.raw(position, name, []))

    def integers(self, position: int, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        raw = self.raw(position, name, default)
        raw = default if raw is None else raw
        entries = [self._as_size(entry, name).constant for entry in (raw if isinstance(raw, list | tuple) else [raw])]
        if any(entry is None for entry in entries):
            self.fail(f"its argument '{name}' depends on a size")
        return tuple(entry for entry in entries if entry is not None)

    def spatial(self, position: int, name: str, n_dims: int, default: int) -> tuple[int, ...]:
        """Return an int list with one entry per spatial dim. A single entry stands for all, an empty list for the
        default."""
        values = self.integers(position, name)
        if not values:
            return (default,) * n_dims
        return values * n_dims if len(values) == 1 else values

    def axis(self, position: int, name: str, rank: int, default: int | None = None) -> int:
        value = self.integer(position, name, default)
        return value + rank if value < 0 else value

    def axes(self, position: int, name: str, rank: int) -> tuple[int, ...]:
        """Return the axes to reduce, ascending; an empty list means all of them."""
        raw = self.raw(position, name)
        if raw is None or raw == []:
            return tuple(range(rank))
        values = raw if isinstance(raw, list | tuple) else [raw]
        return tuple(sorted({int(value) % rank if rank else 0 for value in values}))

    def dtype(self, item: int = 0) -> DType:
        return self.type(item).dtype

    def shape(self, item: int = 0) -> Shape:
        return tuple(self.size_of(text) for text in self.type(item).shape)

    def type(self, item: int = 0) -> TensorType:
        found = self.node.types[item] if item < len(self.node.types) else None
        if found is None:
            self.fail(f"its result {item} is no tensor")
        return found

    def size_of(self, text: str | int) -> Index:
        try:
            return self.builder.sizes.size(parse(str(text)))
        except ExpressionError as problem:
            self.fail(f"its size '{text}' is not understood: {problem.message}")

    def _as_size(self, raw: Any, name: str) -> Index:
        if isinstance(raw, dict) and "expression" in raw:
            return self.size_of(raw["expression"])
        if isinstance(raw, bool | int):
            return as_index(int(raw))
        self.fail(f"its argument '{name}' is no size")

    def _resolve(self, raw: Any) -> Tensor | None:
        if not isinstance(raw, dict) or "node" not in raw:
            return None
        results = self._values[raw["node"]]
        return results[raw.get("item") or 0]


_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul"}


def _has_division(expression: Expression) -> bool:
    match expression:
        case ExpressionConstant(value):
            return isinstance(value, float)
        case Binary("/"):
            return True
        case Binary(_, left, right):
            return _has_division(left) or _has_division(right)
    return False


def constant(value: float | int | bool) -> Constant:
    if isinstance(value, bool):
        return Constant(value, DType.BOOL)
    if isinstance(value, int):
        return Constant(value, DType.I64)
    return Constant(value, DType.F64 if math.isfinite(value) else DType.F32)


Results = tuple["Tensor | None", ...]
Rule = Callable[[Call], "Tensor | tuple[Tensor | None, ...]"]


RULES: dict[str, Rule] = {}
"""By operator without its overload, e.g. ``aten.add``, or with it where overloads differ, e.g. ``aten.max.dim``."""


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, spelled without ``aten.``."""

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES[f"aten.{name}"] = rule
        return rule

    return register
