"""Summarise each function and the file as a whole. Summaries are reused across edits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tree_sitter import Node

from kernel_lsp.core.expression_rules import integer_of
from kernel_lsp.core.finding import Finding
from kernel_lsp.core.plan import Launch, LaunchPlan, Span
from kernel_lsp.plan import checking as plan_checking
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.plan.parser import parse as parse_plan
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.array_bounds import row_reaches, thread_reaches
from kernel_lsp.rules.cuda.declare import launches_in
from kernel_lsp.rules.cuda.host.integer_values import axes, expanded, known_value
from kernel_lsp.rules.cuda.memory.strides import vector_casts
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.cuda.numbers.index_products import IndexProduct, index_products
from kernel_lsp.rules.cuda.outline import CudaFile
from kernel_lsp.rules.cuda.simulation.hits import simulated
from kernel_lsp.rules.cuda.variables import type_bytes
from kernel_lsp.rules.finding import RuleFinding, TextRange, shifted_finding, shifted_range
from kernel_lsp.source.cuda import kernel_signatures

Block = tuple[int, int, int]
"""Threads along x, y, z."""
PLAN_MARK = "kernel-lsp:"
NOWHERE = TextRange(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """The facts of one launch. `kernel` is the key of its kernel, empty where several fit, and `name` what the text
    calls it. An unknown size is None."""

    kernel: str
    name: str
    block: Block | None
    shared_bytes: int | None
    range: TextRange
    is_planned: bool
    template: tuple[int | None, ...] = ()
    """The values of template arguments, None where one is no known number."""
    arguments: tuple[int | None, ...] = ()
    """The values of the kernel's arguments, None where one is no known number."""
    grid: Block | None = None
    """Blocks along x, y, z."""


@dataclass(frozen=True, slots=True)
class Reach:
    """An unguarded access that is out of bounds for blocks of more than `limit` threads along `axis`. With a
    `template_place` the limit counts from the value of that template parameter."""

    range: TextRange
    text: str
    axis: int
    limit: int
    template_place: int | None = None
    argument_place: int | None = None
    """The position of the argument from whose value the limit counts, of rows in global memory."""


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Vectors that are read from rows of as many elements as the parameter at a position says, or a constant of the
    file, which must be a multiple."""

    range: TextRange
    vector: str
    place: int
    multiple: int
    length: int | None = None
    """The value of the constant; None for a parameter."""


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """The facts of one function: its own findings, and the inputs of the whole-file rules. `launch_bound` is 0
    without a stated number. `static_shared_bytes` is a lower bound."""

    name: str
    key: str
    name_range: TextRange
    is_kernel: bool
    launch_bound: int
    has_dynamic_shared: bool
    static_shared_bytes: int
    shared_range: TextRange
    launches: tuple[LaunchFacts, ...]
    findings: tuple[RuleFinding, ...]
    reaches: tuple[Reach, ...] = ()
    vector_rows: tuple[VectorRows, ...] = ()
    products: tuple[IndexProduct, ...] = ()
    short_launch: int | None = None
    """The number of launches before the first one that gives the kernel too little dynamic shared memory."""

    def shifted(self, n_lines: int) -> FunctionFacts:
        """Return the facts of the same function moved `n_lines` down."""
        if not n_lines:
            return self
        return replace(
            self,
            name_range=shifted_range(self.name_range, n_lines),
            shared_range=shifted_range(self.shared_range, n_lines),
            launches=tuple(replace(launch, range=shifted_range(launch.range, n_lines)) for launch in self.launches),
            findings=tuple(shifted_finding(finding, n_lines) for finding in self.findings),
            reaches=tuple(replace(reach, range=shifted_range(reach.range, n_lines)) for reach in self.reaches),
            vector_rows=tuple(replace(rows, range=shifted_range(rows.range, n_lines)) for rows in self.vector_rows),
            products=tuple(replace(each, range=shifted_range(each.range, n_lines)) for each in self.products),
        )


@dataclass(frozen=True)
class CheckedPlan:
    """The launch plan with all findings of its parser and checks; empty for a file without one. `lines` are the
    file's lines up to the last one that the plan refers to."""

    plan: LaunchPlan | None
    findings: tuple[Finding, ...]
    lines: tuple[str, ...]

    def finding_range(self, finding: Finding) -> TextRange:
        """Return the range from a finding's start to the end of its line."""
        line = min((finding.line or 1) - 1, len(self.lines) - 1)
        length = len(self.lines[line].rstrip())
        start = min((finding.column or 1) - 1, max(length - 1, 0))
        return TextRange(line, start, line, max(length, start))

    def span_range(self, span: Span) -> TextRange:
        line = min(span.line - 1, len(self.lines) - 1)
        length = len(self.lines[line])
        return TextRange(line, min(span.column - 1, length), line, min(span.end_column - 1, length))


@dataclass(frozen=True)
class FileFacts:
    """The facts of the whole file. `sets_attributes` are the functions for which host code may raise the limit of
    dynamic shared memory."""

    functions: tuple[FunctionFacts, ...]
    plan: CheckedPlan
    sets_attributes: frozenset[str]
    launched: Callable[[str, int], str]
    """Returns the key of a kernel from its name and the number of arguments."""

    def launches_of(self, kernel: FunctionFacts) -> list[LaunchFacts]:
        return [launch for launch in self.launches if launch.kernel == kernel.key]

    def may_raise_limit(self, kernel: str) -> bool:
        """Return whether an attribute is set for the kernel, or for a function that is no kernel of the file's."""
        return kernel in self.sets_attributes or not self.sets_attributes <= {each.name for each in self.kernels}

    @cached_property
    def kernels(self) -> tuple[FunctionFacts, ...]:
        return tuple(function for function in self.functions if function.is_kernel)

    @cached_property
    def launches(self) -> tuple[LaunchFacts, ...]:
        """The launches of the plan, then those of host code."""
        operations = self.plan.plan.operations if self.plan.plan is not None else ()
        steps = [step for operation in operations for step in operation.steps if isinstance(step, Launch)]
        planned = [self._planned(step) for step in steps]
        return (*planned, *(launch for function in self.functions for launch in function.launches))

    def _planned(self, launch: Launch) -> LaunchFacts:
        x, y, z = (integer_of(size) for size in launch.block)
        block = None if x is None or y is None or z is None else (x, y, z)
        kernel, span = self.launched(launch.kernel, len(launch.arguments)), self.plan.span_range(launch.span)
        return LaunchFacts(kernel, _plain(launch.kernel), block, integer_of(launch.shared_bytes), span, True)


_ATTRIBUTED = re.compile(r"\bcudaFuncSetAttribute\s*\(\s*(?:[^,;]*[>()&:\s])?(\w+)\s*(?:<[^;]*?>)?\s*\)?\s*,")


def attributed(text: str) -> frozenset[str]:
    """Return the functions that attributes are set for, an empty name where one cannot be read."""
    found = _ATTRIBUTED.findall(text)
    return frozenset(found if len(found) == text.count("cudaFuncSetAttribute") else (*found, ""))


def function_facts(function: Function, findings: tuple[RuleFinding, ...]) -> FunctionFacts:
    """Return the facts of a function at its position in the file."""
    file, text = function.file, function.text
    name_range = file.parsed.range(function.name_node)
    is_bounded = "__launch_bounds__" in function.head
    dynamic = file.dynamic_shared(text) if function.is_kernel else None
    is_dynamic = dynamic is not None and len(re.findall(rf"\b{dynamic[2]}\b", text)) > ("extern" in text)
    rows = tuple(_vector_rows(function)) if function.is_kernel and _VECTOR_CAST.search(text) else ()
    products = tuple(index_products(function)) if function.is_kernel else ()
    if not is_bounded and not is_dynamic and "__shared__" not in text and "<<<" not in text:
        reaches = tuple(_reaches(function)) if function.is_kernel else ()
        alone = (function.is_kernel, 0, False, 0, NOWHERE, (), findings, reaches, rows, products)
        return FunctionFacts(function.name, function.key, name_range, *alone)
    arrays = [v for v in function.all_variables() if v.is_shared] if "__shared__" in text else []
    static = [v for v in arrays if "extern" not in v.words]
    launches = launches_in(function) if "<<<" in text else []
    return FunctionFacts(
        name=function.name,
        key=function.key,
        name_range=name_range,
        is_kernel=function.is_kernel,
        launch_bound=_launch_bound(function) if is_bounded else 0,
        has_dynamic_shared=is_dynamic,
        static_shared_bytes=sum(_bytes(function, v.sizes, v.element) for v in static),
        shared_range=file.parsed.range(static[-1].name_node) if static else NOWHERE,
        launches=() if function.is_on_device else tuple(_host_launch(function, c) for c in launches),
        findings=findings,
        reaches=tuple(_reaches(function)) if function.is_kernel else (),
        vector_rows=rows,
        products=products,
        short_launch=_short_launch(function) if is_dynamic else None,
    )


def _short_launch(function: Function) -> int | None:
    """Return the number of launches of the kernel before one that gives it less shared memory than it accesses."""
    return next((int(fault.kind) for fault in simulated(function) if fault.code == "KL233"), None)


_VECTOR_CAST = re.compile(r"[24](?<=\w[24])\s*\*\s*[>)]")


def _vector_rows(function: Function) -> Iterator[VectorRows]:
    """Yield the vectors at ``x + row * cols``, by the parameter or constant `cols`, where the kernel does not ask
    whether rows or addresses are multiples."""
    for cast, vector, pointer in vector_casts(function):
        text = expanded(function, pointer)
        pointers = (each for each in function.parameters if each.is_pointer)
        arrays = [each for each in pointers if re.search(rf"\b{each.name}\b(?!\s*\[)", text)]
        sizes = type_bytes(vector), type_bytes(arrays[0].element) if len(arrays) == 1 else None
        if sizes[0] is None or sizes[1] is None:
            continue
        multiple, where = sizes[0] // math.gcd(sizes[0], sizes[1]), function.file.parsed.range(cast)
        for place, each in enumerate(function.parameters):
            is_length = each.is_integer and not each.is_pointer and not each.writes
            if is_length and _is_row_length(function, each.name, text):
                yield VectorRows(where, vector, place, multiple)
                return
        lengths = {name: function.file.constants[name] for name in names_in_text(text) & function.file.constants.keys()}
        for name, length in lengths.items():
            if length > multiple and length % multiple and _is_row_length(function, name, text):
                yield VectorRows(where, vector, 0, multiple, length)
                return


def _is_row_length(function: Function, name: str, text: str) -> bool:
    """Return whether an address is a product of the name, and the kernel does not ask whether that is a multiple."""
    is_checked = re.search(rf"\b{name}\s*(?:%|&(?!&))|\buintptr_t\b", function.text) is not None
    return not is_checked and re.search(rf"[\w)\]]\s*\*\s*{name}\b(?!\s*[*/])", text) is not None


def _reaches(function: Function) -> Iterator[Reach]:
    parameters = _template_parameters(function)
    for subscript, axis, limit, named in thread_reaches(function):
        place = parameters.index(named) if named in parameters else None
        if not named or place is not None:
            yield Reach(function.file.parsed.range(subscript), function.source(subscript), axis, limit, place)
    sizes = [each.name if each.is_integer and not each.writes else "" for each in function.parameters]
    for access, axis, offset, length in row_reaches(function):
        room, name = function.constant(length), function.source(length)
        template = parameters.index(name) if name in parameters else None
        argument = sizes.index(name) if name in sizes else None
        if room is not None or template is not None or argument is not None:
            where = function.file.parsed.range(access), function.source(access), axis
            yield Reach(*where, (room or 0) - offset, template, argument)


def _template_parameters(function: Function) -> list[str]:
    """Return the names of the kernel's template parameters, in order."""
    outer = function.definition.outer
    given = outer.child_by_field_id(fields.PARAMETERS) if outer.type == "template_declaration" else None
    texts = [] if given is None else [function.source(each).partition("=")[0] for each in given.named_children]
    return [(re.findall(r"\w+", text) or [""])[-1] for text in texts]


def read_plan(file: CudaFile) -> CheckedPlan:
    """Return the plan at the top of the file, checked against its kernels."""
    if PLAN_MARK not in file.parsed.text:
        return CheckedPlan(None, (), ("",))
    return _parse_and_check(_without_bodies(file))


def _plain(name: str) -> str:
    return name.rpartition("::")[2]


def _host_launch(function: Function, call: Node) -> LaunchFacts:
    syntax = next(child for child in call.named_children if child.type == "kernel_call_syntax")
    parts = [child for child in syntax.named_children if child.type != "comment"]
    block = _block_of(function, parts[1]) if len(parts) > 1 else None
    shared = known_value(function, parts[2]) if len(parts) > 2 else 0
    names, place = (function.launched(call), _plain(function.callee(call))), function.file.parsed.range(syntax)
    values = tuple(known_value(function, argument) for argument in function.arguments(call))
    grid = _block_of(function, parts[0]) if parts else None
    return LaunchFacts(*names, block, shared, place, False, _template_values(function, call), values, grid)


def _template_values(function: Function, call: Node) -> tuple[int | None, ...]:
    """Return the values of the template arguments of a launched kernel."""
    callee = call.child_by_field_id(fields.FUNCTION)
    given = [] if callee is None else [c for c in callee.named_children if c.type == "template_argument_list"]
    return tuple(function.constant(argument) for argument in given[0].named_children) if given else ()


def _block_of(function: Function, node: Node) -> Block | None:
    """Return the block size given by ``256``, ``dim3(32, 8)``, or what stands for either."""
    scope, nodes = axes(function, node)
    sizes = [known_value(scope, each) for each in nodes]
    x, y, z = (*sizes, 1, 1, 1)[:3] if sizes else (None, None, None)
    return None if x is None or y is None or z is None else (x, y, z)


def _bytes(function: Function, sizes: tuple[Node | None, ...], element: str) -> int:
    """Return the size of an array in bytes, 0 if its type or an extent is unknown."""
    n_bytes = type_bytes(element) or 0
    for size in sizes:
        n_bytes *= function.constant(size) or 0
    return n_bytes


def _launch_bound(function: Function) -> int:
    bounds = next((child for child in function.node.children if child.type == "launch_bounds"), None)
    if bounds is None or not bounds.named_children:
        return 0
    return function.constant(bounds.named_children[0]) or 0


def _without_bodies(file: CudaFile) -> str:
    """Return the text with empty function bodies and unchanged line numbers, which is all that a plan can disagree
    with. Edits within a body leave this text unchanged, so that the cached result stays valid."""
    data, parts, end = file.parsed.data, [], 0
    for definition in file.definitions:
        body = definition.node.child_by_field_id(fields.BODY)
        if body is not None and body.start_byte >= end:
            n_lines = data.count(b"\n", body.start_byte, body.end_byte)
            parts += [data[end : body.start_byte], b"{", b"\n" * n_lines, b"}"]
            end = body.end_byte
    return b"".join((*parts, data[end:])).decode("utf-8", errors="replace")


@lru_cache(maxsize=64)
def _parse_and_check(text: str) -> CheckedPlan:
    parsed = parse_plan(text)
    findings = tuple(finding for finding in parsed.findings if finding.code != PlanCode.NO_PLAN)
    if parsed.plan is not None:
        findings += plan_checking.check(parsed.plan, kernel_signatures(text))
    last = max([1, *(finding.line or 1 for finding in findings)])
    if parsed.plan is not None:
        last = max([last, *(step.span.line for o in parsed.plan.operations for step in o.steps)])
        last = max([last, *(parameter.span.line for o in parsed.plan.operations for parameter in o.parameters)])
    lines = [line.removesuffix("\r") for line in text.split("\n", last)[:last]]
    return CheckedPlan(parsed.plan, findings, tuple(lines))
