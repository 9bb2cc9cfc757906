"""A task as a program: fused kernels with knobs, rendered as one `.cu` text per schedule.

program = plan_program(task, gpu=None)
text = program.render({knob.name: knob.default for knob in program.knobs})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kernel_lsp.core.expression import free_names, parse
from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.task import Graph, Task
from kernel_lsp.core.words import counted
from kernel_lsp.errors import KernelLspError, TargetError
from kernel_lsp.generate.captured_sizes import SUFFIX, by_sizes, sizes_to_fix
from kernel_lsp.generate.codegen.helpers import HelperUse, render_helpers
from kernel_lsp.generate.fusion.graph import live_tensors
from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.interleaved_channels import channels_of
from kernel_lsp.generate.ir.sizes import Sizes
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.loops.rolled import n_loops, rolled
from kernel_lsp.generate.lowering.builder import NOTHING_GIVEN
from kernel_lsp.generate.lowering.table import LoweredGraph, lower_graph
from kernel_lsp.generate.operation import FusedOperation, OperationBuilder, RenderedOperation
from kernel_lsp.generate.schedule.knobs import Choice, Choices, Knob
from kernel_lsp.generate.structure.attention_patterns import open_head_sizes
from kernel_lsp.generate.structure.kept_attention import keep_attention
from kernel_lsp.generate.structure.kept_for_backward import (
    NOTHING,
    PRODUCTS,
    ROWS,
    are_long_products,
    find_kept,
    with_kept,
)
from kernel_lsp.plan.printer import print_plan
from kernel_lsp.process.gc_pause import paused_collection

MAX_KNOB_ROUNDS = 4
"""Maximum rounds of knob collection. A choice of structure may add kernels with knobs, e.g. the second half of a split
reduction."""


def plan_program(task: Task, *, gpu: object | None = None) -> Program:
    """Lower the task. Raises TargetError that names the operator and the user's line for what no rule can do.

    Without a `gpu` the workload is an H200's.
    """
    try:
        constants = channels_of(task)
        forward, backward, fixed = _lowered(task, constants)
        if heads := _sizes_of_heads(task, forward):
            constants = {**constants, **heads}
            forward, backward, fixed = _lowered(task, constants)
        if wanted := _sizes_of_loops(task, forward, backward):
            found = _lowered(task, {**constants, **wanted})
            if n_loops(*found[:2]) > n_loops(forward, backward):
                constants, (forward, backward, fixed) = {**constants, **wanted}, found
        captured = _at_captured_sizes(task, gpu)
        program = Program(task, forward, backward, Workload.of(task, gpu), fixed, constants, captured)
        program.realize({})  # reports a failure to render before the search
    except KernelLspError:
        raise
    except Exception as problem:
        # A rule that fails on an untested graph costs the user a proposal, not the run.
        raise TargetError(
            f"the generator cannot do this graph: {type(problem).__name__}: {problem}",
            file=task.source_file,
            line=task.source_line,
            next_step="please report this target; a smaller part of it may work",
        ) from problem
    return program


FACTORS = ("mul", "div")


@dataclass(frozen=True)
class Realized:
    """One schedule as text. `schedule` and `knobs` hold only the choices that the text depends on."""

    schedule: dict[str, Choice]
    knobs: tuple[Knob, ...]
    text: str
    is_valid: bool


@dataclass(frozen=True)
class Program:
    """A task ready to be rendered. Rendering is deterministic: one schedule, one text."""

    task: Task
    _forward: LoweredGraph
    _backward: LoweredGraph | None
    workload: Workload
    _fixed: frozenset[str] = frozenset()
    _constants: Mapping[str, int] = field(default_factory=dict)
    """Sizes that are constants."""
    _captured: Program | None = None
    """The program of a small task with its captured sizes as constants."""
    _fused: dict[object, FusedOperation] = field(default_factory=dict, repr=False, compare=False)
    _keeping: dict[int, tuple[LoweredGraph, LoweredGraph, bool]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """Return every knob, including those of kernels that only another structure has."""
        found: dict[str, Knob] = {}
        explored: set[tuple[tuple[str, Choice], ...]] = set()
        pending: list[dict[str, Choice]] = [{}]
        for _ in range(MAX_KNOB_ROUNDS):
            following: list[dict[str, Choice]] = []
            for schedule in pending:
                key = tuple(sorted(schedule.items(), key=lambda item: item[0]))
                if key in explored:
                    continue
                explored.add(key)
                for knob in self._choices(schedule).knobs.values():
                    if found.setdefault(knob.name, knob) is knob and is_structural(knob):
                        following += [{**schedule, knob.name: value} for value in knob.values if value != knob.default]
            pending = following
        return tuple(found.values())

    def is_valid(self, schedule: Mapping[str, Choice]) -> bool:
        """Return True if every choice is a value of its knob and the templates support the combination."""
        by_name = {knob.name: knob for knob in self.knobs}
        if any(name not in by_name or value not in by_name[name].values for name, value in schedule.items()):
            return False
        return all(operation.is_valid for operation in self._operations(Choices(schedule)))

    def render(self, schedule: Mapping[str, Choice]) -> str:
        """Return the `.cu` text. A missing knob has its default. An unsupported combination falls back to a supported
        one; `is_valid` detects it beforehand."""
        return self.realize(schedule).text

    def realize(self, schedule: Mapping[str, Choice]) -> Realized:
        """Return the text of a schedule with the knobs that it depends on: one build returns everything a search
        needs."""
        if not schedule:
            return self._default
        return self._realized(schedule)

    @cached_property
    def _default(self) -> Realized:
        """Return the default schedule's text once rendered: a network's takes seconds."""
        return self._realized({})

    def _realized(self, schedule: Mapping[str, Choice]) -> Realized:
        choices = Choices(schedule)
        with paused_collection():
            operations = self._operations(choices)
        plan = LaunchPlan(tuple(operation.plan for operation in operations), task=self.task.target)
        chosen = {name: schedule.get(name, knob.default) for name, knob in choices.knobs.items()}
        is_valid = all(operation.is_valid for operation in operations) and all(
            chosen[name] in knob.values for name, knob in choices.knobs.items()
        )
        return Realized(chosen, tuple(choices.knobs.values()), _file_text(plan, operations), is_valid)

    def describe(self) -> str:
        """Describe the fusion in one line, of the variants for the captured sizes where there are any."""
        parts = []
        operations = (self._captured or self)._operations(Choices({}))
        for operation, graph in zip(operations, (self.task.forward, self.task.backward), strict=False):
            n_nodes = len(graph.nodes) if graph else 0
            kernels = ", ".join(kernel.name for kernel in operation.kernels)
            parts.append(f"{counted(n_nodes, 'ATen call')} in {counted(len(operation.kernels), 'kernel')} ({kernels})")
        return "; backward: ".join(parts)

    def _choices(self, schedule: Mapping[str, Choice]) -> Choices:
        choices = Choices(schedule)
        self._operations(choices)
        return choices

    def _operations(self, choices: Choices) -> list[RenderedOperation]:
        """Return the operations. Where there are variants for the captured sizes the schedule is theirs; the kernels
        for other sizes have the defaults, and keep the same for the backward."""
        if self._captured is None:
            return self._built(choices, NamePool(), {})
        names, functions = NamePool(), dict[str, str]()
        captured = self._captured._built(choices, names, functions)
        kept = {name: value for name, value in choices.schedule.items() if name == f"{self.task.name}.keeps"}
        others = self._built(Choices(kept), names, functions, SUFFIX)
        merged = [by_sizes(*pair, self.workload.sizes) for pair in zip(captured, others, strict=True)]
        found = [operation for operation in merged if operation is not None]
        return found if len(found) == len(merged) else self._built(choices, NamePool(), {})

    def _built(
        self, choices: Choices, kernel_names: NamePool, functions: dict[str, str], suffix: str = ""
    ) -> list[RenderedOperation]:
        lowered = self._lowered(choices)
        numbers: frozenset[str] = frozenset().union(*(graph.numbers for graph in lowered))
        builder = OperationBuilder(
            *(self.task, choices, self.workload, self._fused, kernel_names, functions, numbers, suffix)
        )
        names = (self.task.name, f"{self.task.name}_backward")
        return [builder.build(name, graph) for name, graph in zip(names, lowered, strict=False)]

    def _lowered(self, choices: Choices) -> list[LoweredGraph]:
        """Return the graphs of the operations, where the forward keeps what the schedule says for the backward."""
        if self._backward is None:
            return [self._forward]
        if n_loops(self._forward, self._backward):  # the numbers of their tensors are not those of the lowering
            return [self._forward, self._backward]
        levels = [level for level in (ROWS, PRODUCTS) if self._with_kept(level)[2]]
        if not levels:
            return [self._forward, self._backward]
        default = ROWS if ROWS in levels else NOTHING
        if PRODUCTS in levels and self._keeps_long_products():
            default = PRODUCTS
        values = (NOTHING, *levels)
        level = choices.pick_int(f"{self.task.name}.keeps", values, default, "what the forward keeps")
        return list(self._with_kept(level)[:2])

    def _keeps_long_products(self) -> bool:
        """Return True if all that the forward keeps in addition at the last level takes longer to compute again."""
        few, all_ = ([output.tensor for output in self._with_kept(level)[0].outputs] for level in (ROWS, PRODUCTS))
        return are_long_products(set(all_).difference(few), self.workload)

    def _with_kept(self, level: int) -> tuple[LoweredGraph, LoweredGraph, bool]:
        """Return both graphs at a level of keeping, and whether it keeps more than the levels below."""
        assert self._backward is not None
        if not level:
            return self._forward, self._backward, False
        if not self._keeping and (attention := keep_attention(self._forward, self._backward)) is not None:
            self._keeping.update({ROWS: (*attention, True), PRODUCTS: (*attention, False)})
        if level not in self._keeping:
            taken = [*self.workload.sizes, *(argument.name for argument in self.task.arguments)]
            below = self._with_kept(level - 1)[1].given
            kept = find_kept(self._forward, self._backward, self.workload, level, taken)
            assert self.task.backward is not None
            backward = _lowered_graph(self.task, self.task.backward, self._fixed, self._constants, kept.given)
            found = (with_kept(self._forward, kept), backward, backward.given != below)
            self._keeping[level] = found
        return self._keeping[level]


def is_structural(knob: Knob) -> bool:
    """Return True if the knob decides which kernels exist."""
    return knob.name.rsplit(".", 1)[-1] in (
        "keeps",
        "split",
        "contraction",
        "inlined",
        "launches",
        "place",
        "attention",
        "windows",
    )


def _at_captured_sizes(task: Task, gpu: object | None) -> Program | None:
    """Return the program with the captured sizes as constants; None of a large task, and where a rule has none."""
    sizes = sizes_to_fix(task)
    if not sizes:
        return None
    try:
        forward, backward, fixed = _lowered(task, sizes)
    except TargetError:
        return None
    return Program(task, forward, backward, Workload.of(task, gpu), fixed, sizes)


def _lowered(task: Task, constants: Mapping[str, int]) -> tuple[LoweredGraph, LoweredGraph | None, frozenset[str]]:
    """Lower both graphs with the sizes `constants`. Also return the numbers of the caller that are constants: one that
    either graph needs as a constant is one in both."""
    fixed = _scales_of_softmax(task)
    while True:
        forward = _lowered_graph(task, task.forward, fixed, constants)
        backward = _lowered_graph(task, task.backward, fixed, constants) if task.backward is not None else None
        settled = forward.settled | (backward.settled if backward is not None else frozenset())
        if settled <= fixed:
            return forward, backward, fixed
        fixed |= settled


def _sizes_of_heads(task: Task, forward: LoweredGraph) -> dict[str, int]:
    """Return the captured sizes of heads that a plan would leave open: attention is one kernel for constant ones."""
    live = live_tensors([output.tensor for output in forward.outputs], {})
    open_names = open_head_sizes(live, Workload.of(task, None))
    return {symbol.name: symbol.captured for symbol in task.symbols if symbol.name in open_names}


def _sizes_of_loops(task: Task, *graphs: LoweredGraph | None) -> dict[str, int]:
    """Return the captured sizes of what unrolled loops would pass on from step to step in one kernel."""
    wanted = frozenset[str]().union(*(graph.sizes_to_fix for graph in graphs if graph is not None))
    return {symbol.name: symbol.captured for symbol in task.symbols if symbol.name in wanted}


def _lowered_graph(
    task: Task,
    graph: Graph,
    fixed: frozenset[str],
    constants: Mapping[str, int],
    given: Mapping[int, str] = NOTHING_GIVEN,
) -> LoweredGraph:
    gradients = frozenset(graph.inputs).difference(argument.name for argument in task.arguments)
    sizes = Sizes({symbol.name: symbol.minimum for symbol in task.symbols}, constants)
    # A backward finds what its forward keeps by content, so both graphs have the same form.
    workload = Workload.of(task, None) if task.backward is None else None
    return rolled(lower_graph(graph, sizes, fixed, gradients, given, workload))


def _scales_of_softmax(task: Task) -> frozenset[str]:
    """Return the factors beside a softmax: attention's kernels need their scale as a constant."""
    nodes = task.forward.nodes
    if not any("softmax" in node.op for node in nodes):
        return frozenset()
    factors = [text for node in nodes if node.op.split(".")[1] in FACTORS for text in node.scalars.values()]
    return frozenset().union(*(free_names(parse(text)) for text in factors))


def _file_text(plan: LaunchPlan, operations: list[RenderedOperation]) -> str:
    kernels = [kernel for operation in operations for kernel in operation.kernels]
    helpers: set[HelperUse] = set().union(*(kernel.helpers for kernel in kernels)) if kernels else set()
    body = "\n".join(kernel.text for kernel in kernels)
    helper_text = render_helpers(helpers)
    includes = _includes(helper_text + body)
    summary = [line for operation in operations for line in operation.summary]
    sections = [print_plan(plan), "".join(f"// {line}\n" for line in summary), includes, helper_text, body]
    return "\n".join(section for section in sections if section)


def _includes(text: str) -> str:
    wanted = [("__half", "cuda_fp16.h"), ("__nv_bfloat16", "cuda_bf16.h"), ("CUDART_", "math_constants.h")]
    wanted.append(("cooperative_groups::", "cooperative_groups.h"))
    return "".join(f"#include <{header}>\n" for word, header in wanted if word in text)
