"""Decisions that change which kernels there are: splitting long reductions, and how contractions are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant as ConstantExpression
from kernel_lsp.core.expression_rules import call
from kernel_lsp.generate.fusion.contractions import operand_type
from kernel_lsp.generate.fusion.reads import live_tensors
from kernel_lsp.generate.fusion.rows import pattern_of
from kernel_lsp.generate.identity import identity_of
from kernel_lsp.generate.index import Index, Variable, as_index, product
from kernel_lsp.generate.knobs import Choices
from kernel_lsp.generate.library import library_plan, n_products
from kernel_lsp.generate.lowering.table import LoweredGraph
from kernel_lsp.generate.names import NamePool
from kernel_lsp.generate.row_major import unravel_safe
from kernel_lsp.generate.scalar import Access, Loop, compare, index_value, select
from kernel_lsp.generate.scalar_walk import masked
from kernel_lsp.generate.sizes import Sizes, to_expression
from kernel_lsp.generate.tensor import Definition, Pointwise, Reduction, Tensor
from kernel_lsp.generate.tensor_core_knobs import AMPERE

MIN_SPLIT_COLUMNS = 8192
"""A row shorter than this is one block's work: a second launch would cost more than it wins."""
MIN_SPLIT_LENGTH = 2048
MAX_SPLIT = 512
MAX_DIRECT_TERMS = 64
"""A sum of at most so many products is done by one thread: staging its factors would cost as much."""
MAX_ROW_OUTPUTS = 1 << 15
"""Sums of products with at most so many results are done by a warp each: tiles would not fill the GPU."""
TENSOR_CORES_FROM_PRODUCTS = 1 << 26
"""Products from which tensor cores are the default where the library is not, and tiles on CUDA cores would be."""
MIN_FRAGMENT = 16
"""Rows, columns and terms below which most of a fragment of the tensor cores would be empty."""
LIBRARY_FROM_PRODUCTS = 1 << 30
LIBRARY_FROM_PRODUCTS_TENSOR_CORE = 1 << 27
"""Products from which a vendor library is the default. In f32 our tensor cores are faster than it, since it keeps to
CUDA cores; in f16 and bf16 it uses more of their rate than `mma.sync` does."""
SPLITTABLE = ("sum", "prod", "max", "min", "any", "all")


@dataclass(frozen=True)
class Structure:
    """The tensors of an operation with definitions that override their own."""

    tensors: tuple[Tensor, ...]
    definitions: Mapping[Tensor, Definition]


@dataclass(frozen=True)
class StructurePlan:
    """What was decided: how each contraction is done, and into how many parts each reduction is split."""

    contractions: tuple[tuple[Tensor, str], ...]
    splits: tuple[tuple[Tensor, int], ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for plans that agree."""
        return (
            tuple((tensor.digest, way) for tensor, way in self.contractions),
            tuple((tensor.digest, split) for tensor, split in self.splits),
        )

    def structure(self, lowered: LoweredGraph, sizes: Sizes) -> Structure:
        """The definitions that the decisions make."""
        rewriter = _Rewriter(sizes)
        for tensor, way in self.contractions:
            rewriter.compute_contraction(tensor, way)
        for tensor, split in self.splits:
            rewriter.split(tensor, split)
        return Structure((*lowered.tensors, *rewriter.new_tensors), rewriter.definitions)


def plan_structure(
    lowered: LoweredGraph,
    choices: Choices,
    captured: Callable[[Index], int],
    n_multiprocessors: int,
    operation: str,
    capability: tuple[int, int],
) -> StructurePlan:
    """Read the schedule's decisions, or make the default ones."""
    planner = _Planner(choices, captured, n_multiprocessors, operation, capability >= AMPERE)
    for tensor in live_tensors([output.tensor for output in lowered.outputs], {}):
        if isinstance(tensor.definition, Reduction):
            planner.plan(tensor, tensor.definition)
    return StructurePlan(tuple(planner.contractions), tuple(planner.splits))


# --- below: one decision at a time


@dataclass
class _Planner:
    choices: Choices
    captured: Callable[[Index], int]
    n_multiprocessors: int
    operation: str
    has_tensor_cores: bool
    contractions: list[tuple[Tensor, str]] = field(default_factory=list)
    splits: list[tuple[Tensor, int]] = field(default_factory=list)
    names: NamePool = field(default_factory=NamePool)

    def plan(self, tensor: Tensor, definition: Reduction) -> None:
        name = f"{self.operation}.{self.names.take(tensor.name)}"
        if definition.contraction is not None and self._plan_contraction(tensor, definition, name) != "rows":
            return
        self._plan_split(tensor, definition, name)

    def _plan_contraction(self, tensor: Tensor, definition: Reduction, name: str) -> str:
        """`direct`: one thread per result; `rows`: a warp or block per result; `tiled`: through shared memory;
        `tensor_cores`: the same with `mma.sync`."""
        options = self._contraction_options(tensor, definition)
        default = self._default_contraction(tensor, definition)
        chosen = str(self.choices.pick(f"{name}.contraction", options, default, "how it is computed"))
        self.contractions.append((tensor, chosen))
        return chosen

    def _contraction_options(self, tensor: Tensor, definition: Reduction) -> list[str]:
        has_library = library_plan(tensor, definition) is not None
        has_tensor_cores = self._operand(tensor, definition) is not None
        offered = [("tensor_cores", has_tensor_cores), ("library", has_library)]
        return ["direct", "rows", "tiled", *(way for way, is_offered in offered if is_offered)]

    def _default_contraction(self, tensor: Tensor, definition: Reduction) -> str:
        contraction = definition.contraction
        assert contraction is not None
        n_terms = self._size(product(variable.extent for variable in definition.reduced))
        count = self._size(n_products(definition, tensor.shape))
        plan = library_plan(tensor, definition)
        operand = self._operand(tensor, definition)
        if plan is not None and operand != DType.F32 and count >= _library_from(plan.result.dtype):
            return "library"
        n_results = self._size(tensor.n_elements)
        n_columns = self._size(product(tensor.shape[axis] for axis in contraction.column_axes))
        n_rows = self._size(product(tensor.shape[axis] for axis in contraction.row_axes))
        fills_fragments = operand is not None and min(n_rows, n_columns, n_terms) >= MIN_FRAGMENT
        if fills_fragments and count >= LIBRARY_FROM_PRODUCTS:
            return "tensor_cores"
        if n_terms <= MAX_DIRECT_TERMS or min(n_columns, n_rows) <= 2:
            return "rows" if n_terms > 4 * MAX_DIRECT_TERMS and n_results <= MAX_ROW_OUTPUTS else "direct"
        if n_results <= MAX_ROW_OUTPUTS and n_terms >= 128:
            return "rows"
        return "tensor_cores" if fills_fragments and count >= TENSOR_CORES_FROM_PRODUCTS else "tiled"

    def _operand(self, tensor: Tensor, definition: Reduction) -> DType | None:
        """Return the element type of a contraction on this GPU's tensor cores; None where they cannot do it."""
        assert definition.contraction is not None
        return operand_type(tensor, definition.contraction) if self.has_tensor_cores else None

    def _plan_split(self, tensor: Tensor, definition: Reduction, name: str) -> None:
        """Long rows of which there are few are split over blocks, whose results are combined by a second kernel."""
        if definition.kind not in SPLITTABLE:
            return
        default = self._default_split(definition)
        n_columns = self._size(product(variable.extent for variable in definition.reduced))
        if n_columns < MIN_SPLIT_COLUMNS // 4:
            return
        values = sorted({1, max(1, default // 2), default, min(MAX_SPLIT, 2 * default), 8, 64})
        split = self.choices.pick_int(f"{name}.split", values, default, "blocks that share a row")
        if split > 1:
            self.splits.append((tensor, split))

    def _default_split(self, definition: Reduction) -> int:
        pattern = pattern_of(definition)
        n_rows = self._size(product(extent for kind, extent in pattern if kind == "o"))
        n_columns = self._size(product(extent for kind, extent in pattern if kind == "r"))
        if not n_rows or n_columns < MIN_SPLIT_COLUMNS // 4:
            return 1
        if pattern[-1][0] == "r":
            if n_columns < MIN_SPLIT_COLUMNS or n_rows >= self.n_multiprocessors:
                return 1
            wanted = min(4 * self.n_multiprocessors // n_rows, n_columns // MIN_SPLIT_LENGTH)
        else:
            wanted = min(self.n_multiprocessors * 64 // n_rows, n_columns // 256)
        return _power_of_two(wanted)

    def _size(self, size: Index) -> int:
        return self.captured(size)


@dataclass
class _Rewriter:
    sizes: Sizes
    definitions: dict[Tensor, Definition] = field(default_factory=dict)
    new_tensors: list[Tensor] = field(default_factory=list)

    def compute_contraction(self, tensor: Tensor, way: str) -> None:
        definition = tensor.definition
        assert isinstance(definition, Reduction)
        if way == "direct":
            loop = Loop("sum", definition.reduced, tensor.dtype, definition.body)
            self.definitions[tensor] = Pointwise(definition.variables, loop)
        elif way == "library":
            plan = library_plan(tensor, definition)
            assert plan is not None
            self.new_tensors.append(plan.result)
            self.definitions[tensor] = plan.view
        elif way == "rows":
            self.definitions[tensor] = replace(definition, contraction=None)
        elif way == "tensor_cores":
            assert definition.contraction is not None
            contraction = replace(definition.contraction, on_tensor_cores=True)
            self.definitions[tensor] = replace(definition, contraction=contraction)

    def split(self, tensor: Tensor, split: int) -> None:
        """Replace the reduction by one over parts of its rows and one over the parts."""
        definition = self.definitions.get(tensor, tensor.definition)
        assert isinstance(definition, Reduction)
        columns = product(variable.extent for variable in definition.reduced)
        part = Variable("part", -2 * tensor.serial - 2, as_index(split))
        length = self._part_length(columns, split)
        within = Variable("within", -2 * tensor.serial - 3, length)
        flat = as_index(part) * length + as_index(within)
        extents = [variable.extent for variable in definition.reduced]
        replacements = dict(zip(definition.reduced, unravel_safe(flat, extents), strict=True))
        body = definition.body.substitute(replacements)
        if (length * split) != columns:
            inside = compare("lt", index_value(flat), index_value(columns))
            neutral = identity_of(definition.kind, body.dtype)
            # What all columns share is there whether or not this one is: left alone it can be read once per row.
            body = select(inside, masked(inside, body, varying=frozenset((part, within))), neutral)
        domain, variables = _split_domain(definition, part, within)
        partial = Tensor(
            f"{tensor.name}_parts",
            tensor.serial - 1,
            tensor.dtype,
            tuple(variable.extent for variable in variables),
            Reduction(definition.kind, variables, (within,), domain, body),
            tensor.source,
        )
        self.new_tensors.append(partial)
        self.definitions[tensor] = Reduction(
            definition.kind,
            definition.variables,
            (part,),
            variables,
            Access(partial, [as_index(0) if v.extent.constant == 1 else as_index(v) for v in variables]),
        )

    def _part_length(self, columns: Index, split: int) -> Index:
        if columns.constant is not None:
            return as_index(-(-columns.constant // split))
        exact = (columns + (split - 1)) // split
        expression = call("ceil_div", to_expression(columns), ConstantExpression(split))
        return as_index(self.sizes.derived(exact, expression, "part_length"))


def _library_from(dtype: DType) -> int:
    is_half = dtype in (DType.F16, DType.BF16)
    return LIBRARY_FROM_PRODUCTS_TENSOR_CORE if is_half else LIBRARY_FROM_PRODUCTS


def _split_domain(
    definition: Reduction, part: Variable, within: Variable
) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """The order in memory of the split reduction, and its outer variables. The parts take the place of the columns."""
    kept: list[Variable] = [variable for variable in definition.domain if variable not in definition.reduced]
    place = len(kept)
    sized = [variable for variable in definition.domain if variable.extent.constant != 1]
    if sized[-1] not in definition.reduced:
        first = next(variable for variable in sized if variable in definition.reduced)
        place = sum(
            variable not in definition.reduced for variable in definition.domain[: definition.domain.index(first)]
        )
    domain = (*kept[:place], part, within, *kept[place:])
    return domain, (*kept[:place], part, *kept[place:])


def _power_of_two(value: int) -> int:
    """The largest one up to `value`, within bounds."""
    result = 1
    while result * 2 <= min(value, MAX_SPLIT):
        result *= 2
    return result
