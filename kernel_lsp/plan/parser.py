"""Text of a `.cu` file -> launch plan. Any text gives a plan or findings with their place, never an exception.

Grammar of a directive's value (`docs/kernel-format.md` has it with examples)::

    op       := NAME "(" [parameter ("," parameter)*] ")" "->" "(" result ("," result)* ")"
    result   := tensor | NAME "=" NAME
    parameter:= tensor | NAME ":" ("float" | "int" | "bool")
    tensor   := NAME ":" DTYPE "[" [expression ("," expression)*] "]"
    where    := expression
    keeps    := tensor ("," tensor)*
    scratch  := tensor ("," tensor)*
    fill     := NAME "=" expression
    launch   := KERNEL ["<" template ("," template)* ">"] "<<<" size "," size ["," expression] ">>>"
                "(" [expression ("," expression)*] ")" [";"] (ATTRIBUTE "=" INT)*
    size     := expression | "dim3" "(" expression ["," expression ["," expression]] ")"
    library  := FUNCTION "(" [value ("," value)*] ")" "->" "(" NAME ("," NAME)* ")"
    value    := NAME | expression | "none" | "[" [value ("," value)*] "]"

Behind the end of an op, keeps, scratch, launch or library line a comment may stand, up to the end of its line.

This is syntax only; `kernel_lsp.plan.checking` knows names, kernels and types.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression, free_names
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import (
    PLAN_VERSION,
    Condition,
    Fill,
    LaunchPlan,
    LibraryArgument,
    LibraryStep,
    Operation,
    ScalarParameter,
    ScalarType,
    Step,
    TensorParameter,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.block import Directive, Piece, read_block
from kernel_lsp.plan.codes import PlanCode, finding
from kernel_lsp.plan.launch_line import (
    Fault,
    expect,
    expect_end,
    parse_expression,
    parse_launch,
    take_name,
    take_parenthesized,
    whole_name,
    without_comment,
)

MAX_FINDINGS = 50
N_REMEMBERED = 32
"""Texts whose plans are remembered: a verdict reads each one five times, for the task and for its mutations."""
_TENSOR_TYPE = re.compile(r"\s*(\w+)\s*\[(.*)\]\s*", re.DOTALL)
_SCALAR_TYPES: dict[str, ScalarType] = {"float": "float", "int": "int", "bool": "bool"}


@dataclass(frozen=True)
class ParseResult:
    """`plan` is None exactly when a finding is an error. All findings have ``source="plan"`` and a place."""

    plan: LaunchPlan | None
    findings: tuple[Finding, ...]


@lru_cache(maxsize=N_REMEMBERED)
def parse(text: str) -> ParseResult:
    """Parse the launch plan at the top of `text`, a `.cu` file. Never raises."""
    block = read_block(text)
    builder = _PlanBuilder(findings=block.findings)
    if block.version is not None:
        builder.attempt(_check_version, block.version)
        builder.read(block.directives)
        if not builder.sections and not builder.has_error:
            message = "the plan has no operation: no '// op:' line"
            builder.findings.append(finding(PlanCode.NO_OPERATION, message, block.version.span))
    findings = tuple(builder.findings[:MAX_FINDINGS])
    if block.version is None or builder.has_error:
        return ParseResult(None, findings)
    operations = tuple(section.operation() for section in builder.sections)
    return ParseResult(LaunchPlan(operations, builder.task), findings)


def parse_or_raise(text: str, file: str) -> LaunchPlan:
    """Parse the launch plan of `text`. Raises PlanError with file, line and next step for the first error."""
    result = parse(text)
    if result.plan is not None:
        return result.plan
    first = next(f for f in result.findings if f.severity == Severity.ERROR)
    raise PlanError(first.message, file=file, line=first.line, next_step=PlanCode(first.code).next_step)


@dataclass
class _Section:
    """One `op:` line and the directives that belong to it."""

    signature: Operation
    where: list[Condition] = field(default_factory=list)
    kept: list[TensorParameter] = field(default_factory=list)
    scratch: list[TensorParameter] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def tensor_names(self) -> set[str]:
        return {tensor.name for tensor in (*self.signature.tensors, *self.kept, *self.scratch)}

    @property
    def number_names(self) -> set[str]:
        """Dims and scalars."""
        tensors = (*self.signature.tensors, *self.kept, *self.scratch)
        dims = (dim for tensor in tensors for dim in tensor.dims)
        scalars = {p.name for p in self.signature.parameters if isinstance(p, ScalarParameter)}
        return scalars.union(*(free_names(dim) for dim in dims))

    def operation(self) -> Operation:
        signature = self.signature
        return Operation(
            name=signature.name,
            parameters=signature.parameters,
            results=signature.results,
            where=tuple(self.where),
            scratch=tuple(self.scratch),
            steps=tuple(self.steps),
            span=signature.span,
            kept=tuple(self.kept),
        )


@dataclass
class _PlanBuilder:
    """Read directives one by one, continuing after an error."""

    findings: list[Finding]
    task: str | None = None
    sections: list[_Section] = field(default_factory=list)

    @property
    def has_error(self) -> bool:
        return any(f.severity == Severity.ERROR for f in self.findings)

    def attempt(self, action: Callable[..., None], *arguments: object) -> None:
        try:
            action(*arguments)
        except Fault as fault:
            self.findings.append(fault.finding)

    def read(self, directives: list[Directive]) -> None:
        """Read tensors before the steps of their section, since a step may precede the scratch it uses."""
        groups: list[list[Directive]] = [[]]
        for directive in directives:
            if directive.key == "task":
                self.attempt(self.read_task, directive)
                continue
            if directive.key == "op":
                groups.append([])
            groups[-1].append(directive)
        for directive in groups[0]:
            message = f"'{directive.key}' stands above the first 'op:' line"
            self.findings.append(finding(PlanCode.MISPLACED_DIRECTIVE, message, directive.span))
        for group in groups[1:]:
            self.read_section(group)
            if len(self.findings) >= MAX_FINDINGS:
                return

    def read_task(self, directive: Directive) -> None:
        _refuse_condition(directive)
        if self.task is not None:
            raise Fault(PlanCode.REPEATED_DIRECTIVE, "a second 'task:' line", directive.span)
        if not directive.value.text:
            raise Fault(PlanCode.SYNTAX, "expected a target after 'task:', e.g. ../model.py::RMSNorm", directive.span)
        self.task = _BEHIND_TARGET.split(directive.value.text, maxsplit=1)[0]

    def read_section(self, group: list[Directive]) -> None:
        n_sections = len(self.sections)
        self.attempt(self.read_signature, group[0])
        if len(self.sections) == n_sections:
            return  # without its signature, errors in the other lines are noise
        section = self.sections[-1]
        for directive in sorted(group[1:], key=lambda d: d.key not in ("keeps", "scratch")):
            self.attempt(_READERS[directive.key], directive, section)

    def read_signature(self, directive: Directive) -> None:
        _refuse_condition(directive)
        self.sections.append(_Section(parse_signature(directive.value)))


def _check_version(piece: Piece) -> None:
    if piece.text != str(PLAN_VERSION):
        message = f"this kernel_lsp reads plans of version {PLAN_VERSION}, and this is version '{piece.text}'"
        raise Fault(PlanCode.BAD_VERSION, message, piece.span)


def _refuse_condition(directive: Directive) -> None:
    if directive.condition is not None:
        message = f"'{directive.key}' takes no [condition]: only launch and library do"
        raise Fault(PlanCode.SYNTAX, message, directive.condition.span)


_BEHIND_TARGET = re.compile(r"\s+(?://|#)\s")
"""Start of a comment after a target."""


def _read_where(directive: Directive, section: _Section) -> None:
    _refuse_condition(directive)
    section.where.append(Condition(parse_expression(directive.value, "a condition"), directive.value.span))


def _read_keeps(directive: Directive, section: _Section) -> None:
    section.kept.extend(_declared(directive))


def _read_scratch(directive: Directive, section: _Section) -> None:
    section.scratch.extend(_declared(directive))


def _declared(directive: Directive) -> list[TensorParameter]:
    _refuse_condition(directive)
    pieces = _declarations(directive.value).split()
    if not pieces:
        raise Fault(PlanCode.SYNTAX, f"expected a tensor, e.g. '{directive.key}: partial: f32[B]'", directive.span)
    return [parse_tensor(piece) for piece in pieces]


def _declarations(value: Piece) -> Piece:
    """Split declarations; no comments, since `//` outside brackets is never a division here."""
    depth = 0
    for position, character in enumerate(value.text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and value.text.startswith("//", position):
            return value.part(0, position) if not value.part(position).next_lines().text else value
    return value


def _read_fill(directive: Directive, section: _Section) -> None:
    _refuse_condition(directive)
    name, rest = take_name(directive.value, "the tensor to fill")
    value = expect(rest, "=", "its value")
    section.steps.append(Fill(name.text, parse_expression(value, "a value"), directive.value.span))


def _read_launch(directive: Directive, section: _Section) -> None:
    condition = _parse_condition(directive)
    section.steps.append(parse_launch(directive.value, condition, section.number_names))


def _read_library(directive: Directive, section: _Section) -> None:
    condition = _parse_condition(directive)
    section.steps.append(parse_library(directive.value, condition, section.tensor_names))


def _parse_condition(directive: Directive) -> Expression | None:
    return None if directive.condition is None else parse_expression(directive.condition, "a condition")


_READERS = {
    "where": _read_where,
    "keeps": _read_keeps,
    "scratch": _read_scratch,
    "fill": _read_fill,
    "launch": _read_launch,
    "library": _read_library,
}


_LIBRARY_FUNCTION = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(?:\.\w+)?", re.ASCII)
MAX_LIST_NESTING = 4


def parse_library(value: Piece, condition: Expression | None, tensors: set[str]) -> LibraryStep:
    """Parse a library call. `tensors` are the tensor names; other arguments are values. Raises Fault."""
    match = _LIBRARY_FUNCTION.match(value.text)
    if match is None:
        raise Fault(PlanCode.SYNTAX, "expected a function such as aten::mm(a, b) -> (c)", value.span)
    arguments, rest = take_parenthesized(value.part(match.end()).strip(), "the arguments")
    rest = expect(rest, "->", "the results")
    results, rest = take_parenthesized(rest, "the results")
    expect_end(without_comment(rest))
    return LibraryStep(
        function=match.group(),
        arguments=tuple(_parse_argument(piece, tensors, 0) for piece in arguments.split()),
        results=tuple(whole_name(piece, "a result") for piece in results.split()),
        condition=condition,
        span=value.span,
    )


def _parse_argument(piece: Piece, tensors: set[str], depth: int) -> LibraryArgument:
    text = piece.text
    if text == "none":
        return None
    if text in tensors:
        return text
    if not text.startswith("["):
        return parse_expression(piece, "an argument")
    if not text.endswith("]") or depth >= MAX_LIST_NESTING:
        raise Fault(PlanCode.SYNTAX, "this list is not closed, or nested too deep", piece.span)
    inner = piece.part(1, len(text) - 1)
    return tuple(_parse_argument(part, tensors, depth + 1) for part in inner.split())


def parse_signature(value: Piece) -> Operation:
    """Parse ``name(parameters) -> (results)``, without steps. Raises Fault."""
    name, rest = take_name(value, "the operation's name")
    parameters, rest = take_parenthesized(rest, "the parameters")
    rest = expect(rest, "->", "the results")
    results, rest = take_parenthesized(rest, "the results")
    expect_end(without_comment(rest))
    if not results.text.strip():
        raise Fault(PlanCode.SYNTAX, "an operation has at least one result", results.span)
    declared = tuple(_parse_parameter(piece) for piece in parameters.split())
    known = {parameter.name: parameter for parameter in declared if isinstance(parameter, TensorParameter)}
    found: list[TensorParameter] = []
    for piece in results.split():
        found.append(_parse_result(piece, known))
        known.setdefault(found[-1].name, found[-1])
    return Operation(name=name.text, parameters=declared, results=tuple(found), span=name.span)


def parse_tensor(piece: Piece) -> TensorParameter:
    """Parse ``name: dtype[dims]``. Raises Fault."""
    name, type_piece = _parse_declaration(piece)
    match = _TENSOR_TYPE.fullmatch(type_piece.text)
    if match is None:
        raise Fault(PlanCode.BAD_DTYPE, _explain_type(type_piece.text), type_piece.span)
    dtype = _parse_dtype(type_piece.part(*match.span(1)))
    dims = tuple(parse_expression(dim, "a dim") for dim in type_piece.part(*match.span(2)).split())
    return TensorParameter(name.text, dtype, dims, piece.span)


def _parse_parameter(piece: Piece) -> TensorParameter | ScalarParameter:
    name, type_piece = _parse_declaration(piece)
    scalar = _SCALAR_TYPES.get(type_piece.text)
    if scalar is not None:
        return ScalarParameter(name.text, scalar, piece.span)
    return parse_tensor(piece)


def _parse_result(piece: Piece, known: Mapping[str, TensorParameter]) -> TensorParameter:
    """Parse a tensor, or ``name = other`` for a result that is another tensor of the signature."""
    name, rest = take_name(piece, "a name")
    if not rest.text.startswith("="):
        return parse_tensor(piece)
    other = whole_name(expect(rest, "=", "the tensor that it is"), "a tensor")
    if other not in known:
        message = f"'{name.text} = {other}' needs '{other}' among the parameters, or among the results before it"
        raise Fault(PlanCode.UNKNOWN_TENSOR, message, piece.span)
    held = known[other]
    return TensorParameter(name.text, held.dtype, held.dims, piece.span, held.same_as or other)


def _parse_declaration(piece: Piece) -> tuple[Piece, Piece]:
    """Parse ``name: type``, split at the colon."""
    name, rest = take_name(piece, "a name")
    type_piece = expect(rest, ":", f"the type of '{name.text}'")
    if not type_piece.text:
        raise Fault(PlanCode.SYNTAX, f"expected the type of '{name.text}' after ':'", type_piece.span)
    return name, type_piece


def _parse_dtype(piece: Piece) -> DType:
    try:
        return DType(piece.text)
    except ValueError:
        message = f"no dtype '{piece.text}': {_suggest_dtype(piece.text)}"
        raise Fault(PlanCode.BAD_DTYPE, message, piece.span) from None


def _explain_type(text: str) -> str:
    if text in DType.__members__.values():
        return f"a tensor needs its dims: '{text}[N]', or '{text}[]' for a single element"
    if re.fullmatch(r"\w+\s*\[[^\]]*", text):
        return f"the ']' of '{text}' is missing"
    return f"'{text}' is neither a tensor type such as f32[B, D] nor float, int or bool"


def _suggest_dtype(text: str) -> str:
    known = DType.from_torch_name(text)
    if known is None:
        near = difflib.get_close_matches(text, list(DType), n=1)
        known = DType(near[0]) if near else None
    return f"did you mean '{known}'?" if known else f"there are {' '.join(DType)}"
