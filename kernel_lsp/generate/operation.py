"""One operation of a program: fuse its graph, choose schedules, render kernels, and write its part of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Binary, Constant, Expression, Name
from kernel_lsp.core.plan import (
    Condition,
    Launch,
    Operation,
    ScalarParameter,
    Step,
    TensorParameter,
    touched,
)
from kernel_lsp.core.task import Task, TaskScalar
from kernel_lsp.core.words import counted
from kernel_lsp.generate.codegen.helpers import HELPERS
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel
from kernel_lsp.generate.codegen.shared_launch import distinct, representatives
from kernel_lsp.generate.fusion.fuse import fuse
from kernel_lsp.generate.fusion.groups import (
    ElementwiseGroup,
    FusedGraph,
    Group,
    LibraryGroup,
    LoopGroup,
    RowGroup,
    SortedGroup,
)
from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.ir.index import Index, divide_exactly, is_nonnegative
from kernel_lsp.generate.ir.scalar import Access, unconverted
from kernel_lsp.generate.ir.sizes import to_expression
from kernel_lsp.generate.ir.tensor import Buffer, Definition, Pointwise, Tensor
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.lowering.builder import positions
from kernel_lsp.generate.lowering.table import LoweredGraph
from kernel_lsp.generate.schedule.knobs import Choice, Choices, Knob
from kernel_lsp.generate.schedule.launches import LaunchPlanner
from kernel_lsp.generate.scratch_reuse import with_shared_scratch
from kernel_lsp.generate.structure.decisions import plan_structure
from kernel_lsp.generate.structure.rewriter import StructurePlan
from kernel_lsp.generate.templates import GroupRenderer, RenderedGroup

MAX_INT_ELEMENTS = 1 << 30
"""Maximum elements of a tensor with int indices; twice as many still do not overflow."""

MAX_SOURCE_LINES = 12
MAX_SOURCE_CHARACTERS = 110


@dataclass(frozen=True)
class RenderedOperation:
    """An operation of the plan with its kernels. `is_valid` is True if every template could follow the schedule, and
    the contract holds for the captured sizes."""

    plan: Operation
    kernels: tuple[RenderedKernel, ...]
    summary: tuple[str, ...]
    is_valid: bool


@dataclass(frozen=True)
class Variant:
    """A rendered group, with the choices and the names of kernels, wanted and given, that it depends on."""

    group: RenderedGroup
    picks: Sequence[tuple[Knob, Choice]]
    names: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class FusedOperation:
    """A fused graph, and the tensors that hold its results and what it keeps. `rendered` has the variants of each group
    by its position, the threads of a shared launch and the suffix of names: the schedules of a search differ in few
    groups."""

    graph: FusedGraph
    results: Mapping[str, Tensor]
    rendered: dict[tuple[int, int | None, str], list[Variant]] = field(default_factory=dict)


@dataclass
class OperationBuilder:
    """Builds the operations of one file with unique kernel names. `functions` are the names of rendered kernels by
    code."""

    task: Task
    choices: Choices
    workload: Workload
    fused: dict[object, FusedOperation]
    kernel_names: NamePool = field(default_factory=NamePool)
    functions: dict[str, str] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    """Numbers of the caller that the operations take as parameters."""
    suffix: str = ""
    """The end of the names of kernels and of scratch tensors."""

    def suffixed(self, name: str) -> str:
        """Return the name with the suffix once: that of a group may end in a tensor's."""
        return f"{name.removesuffix(self.suffix)}{self.suffix}"

    def kernel_name(self, wanted: str) -> str:
        """Return `wanted` as the unique name of a kernel."""
        return self.kernel_names.take(self.suffixed(wanted))

    def build(self, name: str, lowered: LoweredGraph) -> RenderedOperation:
        """Render one operation."""
        return _OperationRenderer(self, name, lowered).render()


class _OperationRenderer:
    def __init__(self, builder: OperationBuilder, name: str, lowered: LoweredGraph) -> None:
        self.builder, self.name, self.lowered = builder, name, lowered
        plan = plan_structure(lowered, builder.choices, builder.workload, name)
        fused = self._fused(plan)
        self.fused, self.results, self.rendered = fused.graph, fused.results, fused.rendered
        self.taken: list[tuple[str, str]] = []
        self.scalars = self._scalars()
        self.names = self._tensor_names()
        self.index_type = self._index_type()

    def _fused(self, plan: StructurePlan) -> FusedOperation:
        """Return the fused graph. Schedules with the same structure share one."""
        outputs = {output.name: output.tensor for output in self.lowered.outputs}
        key = (self.name, plan.key, *outputs, *sorted(self.lowered.given))
        if key not in self.builder.fused:
            sizes = self.lowered.sizes.copy()
            structure = plan.structure(self.lowered, sizes)
            for name in outputs.keys() - self.lowered.returns.keys():
                outputs[name] = _holder(outputs[name], structure.definitions)
            self.builder.fused[key] = FusedOperation(fuse(structure, list(outputs.values()), sizes), outputs)
        return self.builder.fused[key]

    def render(self) -> RenderedOperation:
        groups = self._rendered_groups()
        kernels = tuple(kernel for group in groups for kernel in group.kernels)
        functions = representatives(kernels, self.builder.functions)
        steps = tuple(step for group in groups for step in self._steps(group, functions))
        conditions = [*self._scalar_conditions(), *self._size_conditions()]
        conditions += [condition for kernel in kernels for condition in kernel.conditions]
        unique = {str(condition): condition for condition in conditions}
        returns = self.lowered.returns
        plan = Operation(
            self.name,
            self._parameters(),
            tuple(self._result(name, holder) for name, holder in returns.items()),
            tuple(Condition(condition) for condition in unique.values()),
            self._scratch(kernels, steps),
            steps,
            kept=tuple(self._parameter(self.results[name]) for name in self.results if name not in returns),
        )
        stored = {self.names[tensor]: tensor for tensor in self._stored()}
        plan = with_shared_scratch(plan, stored, self.builder.workload)
        own = distinct(kernels, functions)
        summary = self._summary(len(set(functions.values())), len(kernels))
        is_valid = all(group.is_valid for group in groups) and all(map(self.builder.workload.meets, unique.values()))
        return RenderedOperation(plan, own, summary, is_valid)

    def _summary(self, n_kernels: int, n_launches: int) -> tuple[str, ...]:
        """Summarize the computation in the user's own lines, and count its kernels and launches."""
        task = self.builder.task
        is_backward = self.name != task.name
        graph = task.backward if is_backward and task.backward is not None else task.forward
        parts = f"{counted(len(graph.nodes), 'ATen call')} in {counted(n_kernels, 'kernel')}"
        parts += f", {n_launches} launches" if n_launches > n_kernels else ""
        if is_backward:
            return (f"{self.name}: {parts}.",)
        lines = dict.fromkeys(node.source.text.strip() for node in graph.nodes if node.source is not None)
        shown = [f"    {line[:MAX_SOURCE_CHARACTERS]}" for line in list(lines)[:MAX_SOURCE_LINES]]
        return (f"{self.name}: {parts}. In PyTorch:", *shown) if shown else (f"{self.name}: {parts}.",)

    def _scalars(self) -> tuple[TaskScalar, ...]:
        return self.builder.task.scalars

    def _tensor_names(self) -> dict[Tensor, str]:
        """Return the plan's name of every tensor in memory: arguments and results by their own, scratch after the
        user's code."""
        taken = {symbol.name for symbol in self.builder.task.symbols} | {scalar.name for scalar in self.scalars}
        pool = NamePool(taken)
        names: dict[Tensor, str] = {}
        for name, tensor in self.lowered.inputs.items():
            names[tensor] = pool.take_exactly(name)
        for name, tensor in self.results.items():
            names[tensor] = pool.take_exactly(name) if name not in names.values() else pool.take(name)
        for tensor in sorted(self.fused.stored - names.keys(), key=lambda tensor: tensor.serial):
            names[tensor] = pool.take(f"{tensor.name}{self.builder.suffix}")
        return names

    def _index_type(self) -> Literal["int", "long long"]:
        sizes = [self.builder.workload.size(tensor.n_elements) for tensor in self.names]
        return "int" if max(sizes, default=0) <= MAX_INT_ELEMENTS else "long long"

    def _rendered_groups(self) -> list[RenderedGroup]:
        """Render groups in launch order. Groups that share a launch become one."""
        groups = self.fused.groups
        planner = LaunchPlanner(self.name, groups, self.builder.choices, self.builder.workload)
        mode = planner.mode()
        threads = planner.threads(mode)
        rendered = [self._render_group(position, threads.get(position)) for position in range(len(groups))]
        if not threads:
            return rendered
        kernels = [group.kernels[0] if len(group.kernels) == 1 else None for group in rendered]
        sizes = {name: to_expression(tensor.n_elements) for tensor, name in self.names.items()}
        scratch = {self.names[tensor] for tensor in self._stored()}
        shared = planner.shared_kernels(mode, kernels, self.builder.kernel_name, self.index_type, sizes, scratch)
        if shared is None:
            return [*rendered[:-1], replace(rendered[-1], is_valid=False)]
        return self._in_launches(planner, rendered, shared)

    def _in_launches(
        self,
        planner: LaunchPlanner,
        rendered: Sequence[RenderedGroup],
        shared: Sequence[tuple[frozenset[int], RenderedKernel]],
    ) -> list[RenderedGroup]:
        """Order launches stage by stage: groups with a launch of their own first, then shared launches."""
        owners = {position: kernel for positions, kernel in shared for position in positions}
        found: list[RenderedGroup] = []
        placed: set[str] = set()
        for stage in planner.stages:
            found += [rendered[position] for position in stage if position not in owners]
            together = [position for position in stage if position in owners]
            if together and owners[together[0]].name not in placed:
                placed.add(owners[together[0]].name)
                is_valid = all(group.is_valid for group in rendered)
                found.append(RenderedGroup((owners[together[0]],), is_valid=is_valid))
        return found

    def _render_group(self, position: int, threads: int | None) -> RenderedGroup:
        group, choices, names = self.fused.groups[position], self.builder.choices, self.builder.kernel_names
        variants = self.rendered.setdefault((position, threads, self.builder.suffix), [])
        for known in variants:
            if choices.repeats(known.picks) and names.retake(known.names):
                return known.group
        n_picks, self.taken = len(choices.picks), []
        renderer = GroupRenderer(
            choices=choices,
            workload=self.builder.workload,
            new_kernel=self._new_kernel,
            tensor_names=self.names,
            threads=threads,
        )
        found = renderer.render(group, self._group_name(group))
        variants.append(Variant(found, choices.picks[n_picks:], self.taken))
        return found

    def _new_kernel(self, wanted: str, local_names: Sequence[str] = ()) -> KernelWriter:
        """Start a kernel. `local_names` are those that the template itself uses; sizes keep their own names too."""
        wanted = f"{wanted}_kernel" if wanted in HELPERS else wanted
        name = self.builder.kernel_name(wanted)
        self.taken.append((self.builder.suffixed(wanted), name))
        return KernelWriter(
            name,
            self.names,
            self.fused.hints,
            frozenset(symbol.name for symbol in self.builder.task.symbols),
            frozenset(local_names),
            self.index_type,
            uses_intrinsics=self._is_in_16_bits(),
            in_gradients=self.name != self.builder.task.name,
        )

    def _is_in_16_bits(self) -> bool:
        """Return True if all floating arguments and results have 16 bits, but for single numbers as arguments, such as
        the gradient of a loss."""
        lowered = self.lowered
        arguments = [tensor for name, tensor in lowered.inputs.items() if tensor.shape and name not in lowered.given]
        results = [tensor for name, tensor in self.results.items() if name in lowered.returns]
        found = {tensor.dtype for tensor in (*arguments, *results)}
        floating = {dtype for dtype in found if dtype.is_floating}
        return bool(floating) and floating <= {DType.F16, DType.BF16}

    def _group_name(self, group: Group) -> str:
        """Return the operation's name, with the group's result appended where there are several groups."""
        if len(self.fused.groups) == 1:
            return self.name
        tensor = _main_tensor(group)
        name = self.names.get(tensor, tensor.name)
        return f"{self.name}_{name}"

    def _steps(self, group: RenderedGroup, functions: Mapping[str, str]) -> list[Step]:
        steps: list[Step] = [*group.library]
        for kernel in group.kernels:
            steps += kernel.fills
            grid, block = kernel.grid, kernel.block
            sizes = (Constant(block[0]), Constant(block[1]), Constant(block[2]))
            shared = Constant(kernel.shared_bytes)
            name = functions[kernel.name]
            launch = Launch(name, (), grid, sizes, shared, kernel.arguments, kernel.when, kernel.attributes)
            steps.append(launch)
        return steps

    def _parameters(self) -> tuple[TensorParameter | ScalarParameter, ...]:
        tensors = tuple(self._parameter(tensor) for tensor in self.lowered.inputs.values())
        if self.name != self.builder.task.name:
            taken = [scalar for scalar in self.scalars if scalar.name in self.lowered.numbers]
            return (*tensors, *(ScalarParameter(scalar.name, scalar.type) for scalar in taken))
        by_name = {parameter.name: parameter for parameter in tensors}
        ordered: list[TensorParameter | ScalarParameter] = []
        for argument in self.builder.task.arguments:
            if isinstance(argument, TaskScalar):
                ordered.append(ScalarParameter(argument.name, argument.type))
            else:
                tensor = self.lowered.inputs.get(argument.name)
                if tensor is not None:
                    ordered.append(by_name[self.names[tensor]])
        return tuple(ordered)

    def _parameter(self, tensor: Tensor) -> TensorParameter:
        return TensorParameter(self.names[tensor], tensor.dtype, tuple(to_expression(size) for size in tensor.shape))

    def _result(self, name: str, holder: str) -> TensorParameter:
        if holder == name:
            return self._parameter(self.results[name])
        held = self.results[holder] if holder in self.results else self.lowered.inputs[holder]
        return replace(self._parameter(held), name=name, same_as=self.names[held])

    def _scratch(self, kernels: Sequence[RenderedKernel], steps: Sequence[Step]) -> tuple[TensorParameter, ...]:
        """Return the intermediates that steps exchange: a block may keep its own in shared memory."""
        own = dict.fromkeys(scratch for kernel in kernels for scratch in kernel.scratch)
        used = frozenset[str]().union(*map(touched, steps))
        return (*(self._parameter(tensor) for tensor in self._stored() if self.names[tensor] in used), *own)

    def _stored(self) -> list[Tensor]:
        """Return the intermediates in memory."""
        known = {*self.lowered.inputs.values(), *self.results.values()}
        return sorted(self.fused.stored - known, key=lambda tensor: tensor.serial)

    def _scalar_conditions(self) -> list[Expression]:
        """Return the conditions that numbers which are constants in the kernels equal their captured values. Other
        values take the reference."""
        if self.name != self.builder.task.name:
            return []
        fixed = [scalar for scalar in self.scalars if scalar.name not in self.builder.numbers]
        return [Binary("==", Name(scalar.name), Constant(scalar.value)) for scalar in fixed]

    def _size_conditions(self) -> list[Expression]:
        """Return the conditions for int indices: tensors of symbolic size have at most `MAX_INT_ELEMENTS` elements."""
        if self.index_type != "int":
            return []
        return bounds_of([tensor.n_elements for tensor in self.names])


def bounds_of(sizes: Sequence[Index]) -> list[Expression]:
    """Return ``size <= 2^30`` for every size that no other size in the list is a multiple of."""
    symbolic = list({size.digest: size for size in sizes if size.constant is None}.values())
    kept = [
        size
        for size in symbolic
        if not any(
            other is not size and (quotient := divide_exactly(other, size)) is not None and is_nonnegative(quotient - 1)
            for other in symbolic
        )
    ]
    return [Binary("<=", to_expression(size), Constant(MAX_INT_ELEMENTS)) for size in kept]


def _holder(tensor: Tensor, definitions: Mapping[Tensor, Definition]) -> Tensor:
    """Return the tensor of the same type in memory that a tensor is a copy of, maybe by way of a wider type; itself
    elsewhere."""
    held = tensor
    while isinstance(definition := definitions.get(held, held.definition), Pointwise):
        body = unconverted(definition.body)
        if not isinstance(body, Access) or body.mask is not None or body.index != positions(definition.variables):
            return tensor
        held = body.tensor
        if held.shape != tensor.shape or held.dtype.itemsize < tensor.dtype.itemsize:
            return tensor
    return held if held.dtype == tensor.dtype and not isinstance(definition, Buffer) else tensor


def _main_tensor(group: Group) -> Tensor:
    match group:
        case ElementwiseGroup(stores=stores) | SortedGroup(stores=stores):
            return stores[0].tensor
        case RowGroup(stores=stores, row_stores=row_stores, reductions=reductions):
            if stores:
                return stores[-1][1].tensor
            stored = [reduction.tensor for reduction in reductions if reduction.stored]
            return row_stores[-1].tensor if row_stores else (stored or [reductions[0].tensor])[-1]
        case LibraryGroup(tensors=tensors):
            return tensors[0]
        case LoopGroup(tensors=tensors, permuted=permuted):
            written = [tensor for tensor in tensors if tensor is not None]
            return [*written, *(each.tensor for each in permuted)][-1]
    stores = getattr(group, "stores", ())
    return stores[-1].tensor if stores else group.tensor
