"""Text of a `.cu` file -> launch plan. Any text gives a plan or findings with their place, never an exception.

Grammar of a directive's value (`docs/kernel-format.md` has it with examples)::

    op       := NAME "(" [parameter ("," parameter)*] ")" "->" "(" tensor ("," tensor)* ")"
    parameter:= tensor | NAME ":" ("float" | "int" | "bool")
    tensor   := NAME ":" DTYPE "[" [expression ("," expression)*] "]"
    where    := expression
    scratch  := tensor ("," tensor)*
    fill     := NAME "=" expression
    launch   := KERNEL ["<" template ("," template)* ">"] "<<<" size "," size ["," expression] ">>>"
                "(" [expression ("," expression)*] ")" (ATTRIBUTE "=" INT)*
    size     := expression | "dim3" "(" expression ["," expression ["," expression]] ")"
    library  := FUNCTION "(" [value ("," value)*] ")" "->" "(" NAME ("," NAME)* ")"
    value    := NAME | expression | "none" | "[" [value ("," value)*] "]"

This is syntax only; `kernel_lsp.plan.checking` knows names, kernels and types.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import FUNCTIONS, Constant, Expression, ExpressionError, Name, free_names
from kernel_lsp.core.expression_parser import parse as parse_expression_text
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import (
    PLAN_VERSION,
    Condition,
    Fill,
    Launch,
    LaunchPlan,
    LibraryArgument,
    LibraryStep,
    Operation,
    ScalarParameter,
    ScalarType,
    Span,
    Step,
    TensorParameter,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.block import Directive, Piece, read_block
from kernel_lsp.plan.codes import PlanCode, finding

ATTRIBUTES = {"cooperative": 1, "cluster": 16, "max_shared": 227 * 1024}
"""Launch attributes with their largest value. 16 blocks is the non-portable cluster limit of Hopper; 227 KiB is the
shared memory that one block can use there (CUDA C++ Programming Guide, table of technical specifications)."""
RESERVED_NAMES = frozenset({"and", "or", "not", "true", "false", "inf", "nan", "none", *FUNCTIONS})
MAX_FINDINGS = 50


@dataclass(frozen=True)
class ParseResult:
    """`plan` is None exactly when a finding is an error. All findings have ``source="plan"`` and a place."""

    plan: LaunchPlan | None
    findings: tuple[Finding, ...]


def parse(text: str) -> ParseResult:
    """The launch plan at the top of `text`, the text of a `.cu` file. Never raises."""
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
    """The launch plan of `text`. Raises PlanError with file, line and next step for the first error."""
    result = parse(text)
    if result.plan is not None:
        return result.plan
    first = next(f for f in result.findings if f.severity == Severity.ERROR)
    raise PlanError(first.message, file=file, line=first.line, next_step=PlanCode(first.code).next_step)


# --- below: sections of the block


class _Fault(Exception):
    """A directive that does not parse; the builder turns it into a finding."""

    def __init__(self, code: PlanCode, message: str, span: Span) -> None:
        super().__init__(message)
        self.finding = finding(code, message, span)


@dataclass
class _Section:
    """One `op:` line and the directives that belong to it."""

    signature: Operation
    where: list[Condition] = field(default_factory=list)
    scratch: list[TensorParameter] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def tensor_names(self) -> set[str]:
        return {tensor.name for tensor in (*self.signature.tensors, *self.scratch)}

    @property
    def number_names(self) -> set[str]:
        """Dims and scalars."""
        dims = (dim for tensor in (*self.signature.tensors, *self.scratch) for dim in tensor.dims)
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
        )


@dataclass
class _PlanBuilder:
    """Reads directives one by one and keeps going after an error."""

    findings: list[Finding]
    task: str | None = None
    sections: list[_Section] = field(default_factory=list)

    @property
    def has_error(self) -> bool:
        return any(f.severity == Severity.ERROR for f in self.findings)

    def attempt(self, action: Callable[..., None], *arguments: object) -> None:
        try:
            action(*arguments)
        except _Fault as fault:
            self.findings.append(fault.finding)

    def read(self, directives: list[Directive]) -> None:
        """Scratch is read before the steps of its section: a step may stand above the scratch it uses."""
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
            raise _Fault(PlanCode.REPEATED_DIRECTIVE, "a second 'task:' line", directive.span)
        if not directive.value.text:
            raise _Fault(PlanCode.SYNTAX, "expected a target after 'task:', e.g. ../model.py::RMSNorm", directive.span)
        self.task = directive.value.text

    def read_section(self, group: list[Directive]) -> None:
        n_sections = len(self.sections)
        self.attempt(self.read_signature, group[0])
        if len(self.sections) == n_sections:
            return  # without its signature every other line would only add noise
        section = self.sections[-1]
        for directive in sorted(group[1:], key=lambda d: d.key != "scratch"):
            self.attempt(_READERS[directive.key], directive, section)

    def read_signature(self, directive: Directive) -> None:
        _refuse_condition(directive)
        self.sections.append(_Section(_parse_signature(directive.value)))


def _check_version(piece: Piece) -> None:
    if piece.text != str(PLAN_VERSION):
        message = f"this kernel_lsp reads plans of version {PLAN_VERSION}, and this is version '{piece.text}'"
        raise _Fault(PlanCode.BAD_VERSION, message, piece.span)


def _refuse_condition(directive: Directive) -> None:
    if directive.condition is not None:
        message = f"'{directive.key}' takes no [condition]: only launch and library do"
        raise _Fault(PlanCode.SYNTAX, message, directive.condition.span)


# --- signatures, where, scratch, fill

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TENSOR_TYPE = re.compile(r"\s*(\w+)\s*\[(.*)\]\s*", re.DOTALL)
_SCALAR_TYPES: dict[str, ScalarType] = {"float": "float", "int": "int", "bool": "bool"}


def _parse_signature(value: Piece) -> Operation:
    name, rest = _take_name(value, "the operation's name")
    parameters, rest = _take_parenthesized(rest, "the parameters")
    rest = _expect(rest, "->", "the results")
    results, rest = _take_parenthesized(rest, "the results")
    _expect_end(rest)
    if not results.text.strip():
        raise _Fault(PlanCode.SYNTAX, "an operation has at least one result", results.span)
    return Operation(
        name=name.text,
        parameters=tuple(_parse_parameter(piece) for piece in parameters.split()),
        results=tuple(_parse_tensor(piece) for piece in results.split()),
        span=name.span,
    )


def _parse_parameter(piece: Piece) -> TensorParameter | ScalarParameter:
    name, type_piece = _parse_declaration(piece)
    scalar = _SCALAR_TYPES.get(type_piece.text)
    if scalar is not None:
        return ScalarParameter(name.text, scalar, piece.span)
    return _parse_tensor(piece)


def _parse_tensor(piece: Piece) -> TensorParameter:
    name, type_piece = _parse_declaration(piece)
    match = _TENSOR_TYPE.fullmatch(type_piece.text)
    if match is None:
        raise _Fault(PlanCode.BAD_DTYPE, _explain_type(type_piece.text), type_piece.span)
    dtype = _parse_dtype(type_piece.part(*match.span(1)))
    dims = tuple(_parse_expression(dim, "a dim") for dim in type_piece.part(*match.span(2)).split())
    return TensorParameter(name.text, dtype, dims, piece.span)


def _parse_declaration(piece: Piece) -> tuple[Piece, Piece]:
    """``name: type``, cut at the colon."""
    name, rest = _take_name(piece, "a name")
    type_piece = _expect(rest, ":", f"the type of '{name.text}'")
    if not type_piece.text:
        raise _Fault(PlanCode.SYNTAX, f"expected the type of '{name.text}' after ':'", type_piece.span)
    return name, type_piece


def _parse_dtype(piece: Piece) -> DType:
    try:
        return DType(piece.text)
    except ValueError:
        message = f"no dtype '{piece.text}': {_suggest_dtype(piece.text)}"
        raise _Fault(PlanCode.BAD_DTYPE, message, piece.span) from None


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


def _read_where(directive: Directive, section: _Section) -> None:
    _refuse_condition(directive)
    section.where.append(Condition(_parse_expression(directive.value, "a condition"), directive.value.span))


def _read_scratch(directive: Directive, section: _Section) -> None:
    _refuse_condition(directive)
    pieces = directive.value.split()
    if not pieces:
        raise _Fault(PlanCode.SYNTAX, "expected a tensor, e.g. 'scratch: partial: f32[B]'", directive.span)
    section.scratch.extend([_parse_tensor(piece) for piece in pieces])


def _read_fill(directive: Directive, section: _Section) -> None:
    _refuse_condition(directive)
    name, rest = _take_name(directive.value, "the tensor to fill")
    value = _expect(rest, "=", "its value")
    section.steps.append(Fill(name.text, _parse_expression(value, "a value"), directive.value.span))


# --- launches

_Size = tuple[Expression, Expression, Expression]
_KERNEL = re.compile(r"(?:::\s*)?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*", re.ASCII)
_CPP_TYPE = re.compile(r"(?:::\s*)?[A-Za-z_]\w*(?:(?:\s*::\s*|\s+)[A-Za-z_]\w*)*(?:\s*<[\w\s:<>*]*>)?[\s*&]*", re.ASCII)
_DIM3 = re.compile(r"dim3\s*(?=\()")
_ATTRIBUTE = re.compile(r"\s*(\w+)\s*=\s*(\d{1,9})(?!\w)", re.ASCII)


def _read_launch(directive: Directive, section: _Section) -> None:
    condition = _parse_condition(directive)
    target, rest = _cut(directive.value, "<<<", "a launch such as kernel<<<grid, block>>>(arguments)")
    configuration, rest = _cut(rest, ">>>", "the '>>>' that ends the launch configuration")
    arguments, rest = _take_parenthesized(rest.strip(), "the arguments")
    kernel, template_arguments = _parse_kernel(target.strip(), section)
    grid, block, shared_bytes = _parse_configuration(configuration)
    pieces = arguments.split()
    section.steps.append(
        Launch(
            kernel=kernel,
            template_arguments=template_arguments,
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            arguments=tuple(_parse_expression(piece, "an argument") for piece in pieces),
            condition=condition,
            attributes=_parse_attributes(rest),
            span=directive.value.span,
            argument_spans=tuple(piece.span for piece in pieces),
        )
    )


def _parse_condition(directive: Directive) -> Expression | None:
    return None if directive.condition is None else _parse_expression(directive.condition, "a condition")


def _parse_kernel(target: Piece, section: _Section) -> tuple[str, tuple[Expression | str, ...]]:
    match = _KERNEL.match(target.text)
    if match is None:
        raise _Fault(PlanCode.SYNTAX, "expected the name of a kernel before '<<<'", target.span)
    name = re.sub(r"\s+", "", match.group())
    rest = target.part(match.end()).strip()
    if not rest.text:
        return name, ()
    if not (rest.text.startswith("<") and rest.text.endswith(">") and len(rest.text) > 1):
        message = f"expected '<template arguments>' between '{name}' and '<<<'"
        raise _Fault(PlanCode.SYNTAX, message, rest.span)
    numbers = section.number_names
    pieces = rest.part(1, len(rest.text) - 1).split()
    return name, tuple(_parse_template_argument(piece, numbers) for piece in pieces)


def _parse_template_argument(piece: Piece, numbers: set[str]) -> Expression | str:
    """An expression when it is one over dims and scalars, the name of a C++ type (or constant) otherwise."""
    try:
        expression: Expression | None = parse_expression_text(piece.text)
    except ExpressionError:
        expression = None
    if expression is not None and free_names(expression) <= numbers:
        return expression
    if expression is None or isinstance(expression, Name):
        if _CPP_TYPE.fullmatch(piece.text):
            return re.sub(r"\s+", " ", piece.text)
        return _parse_expression(piece, "a template argument")
    return expression


def _parse_configuration(piece: Piece) -> tuple[_Size, _Size, Expression]:
    """Grid, block and bytes of shared memory."""
    parts = piece.split()
    if not 2 <= len(parts) <= 3:
        message = f"expected <<<grid, block>>> or <<<grid, block, shared_bytes>>>, and found {len(parts)} values"
        raise _Fault(PlanCode.SYNTAX, message, piece.span)
    shared_bytes = _parse_expression(parts[2], "the bytes of shared memory") if len(parts) == 3 else Constant(0)
    return _parse_size(parts[0], "the grid"), _parse_size(parts[1], "the block"), shared_bytes


def _parse_size(piece: Piece, what: str) -> _Size:
    one = Constant(1)
    match = _DIM3.match(piece.text)
    if match is None:
        return _parse_expression(piece, what), one, one
    inner, rest = _take_parenthesized(piece.part(match.end()), what)
    _expect_end(rest)
    sizes = [_parse_expression(part, what) for part in inner.split()]
    if not 1 <= len(sizes) <= 3:
        raise _Fault(PlanCode.SYNTAX, f"dim3 takes 1 to 3 values, and has {len(sizes)}", piece.span)
    x, y, z = (*sizes, one, one)[:3]
    return x, y, z


def _parse_attributes(rest: Piece) -> tuple[tuple[str, int], ...]:
    attributes: dict[str, int] = {}
    rest = rest.strip()
    while rest.text:
        match = _ATTRIBUTE.match(rest.text)
        if match is None:
            message = "expected nothing more, or attributes such as cooperative=1"
            raise _Fault(PlanCode.BAD_ATTRIBUTE, message, rest.span)
        name, value = match.group(1), int(match.group(2))
        _check_attribute(name, value, attributes, rest.part(*match.span(1)).span)
        attributes[name] = value
        rest = rest.part(match.end()).strip()
    return tuple(attributes.items())


def _check_attribute(name: str, value: int, seen: dict[str, int], span: Span) -> None:
    if name not in ATTRIBUTES:
        near = difflib.get_close_matches(name, ATTRIBUTES, n=1)
        suggestion = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(ATTRIBUTES)}"
        raise _Fault(PlanCode.BAD_ATTRIBUTE, f"no launch attribute '{name}': {suggestion}", span)
    if name in seen:
        raise _Fault(PlanCode.BAD_ATTRIBUTE, f"'{name}' is given twice", span)
    if value > ATTRIBUTES[name]:
        raise _Fault(PlanCode.BAD_ATTRIBUTE, f"{name}={value} is past the limit of {ATTRIBUTES[name]}", span)


# --- library steps

_LIBRARY_FUNCTION = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(?:\.\w+)?", re.ASCII)
MAX_LIST_NESTING = 4


def _read_library(directive: Directive, section: _Section) -> None:
    condition = _parse_condition(directive)
    match = _LIBRARY_FUNCTION.match(directive.value.text)
    if match is None:
        message = "expected a function such as aten::mm(a, b) -> (c)"
        raise _Fault(PlanCode.SYNTAX, message, directive.value.span)
    arguments, rest = _take_parenthesized(directive.value.part(match.end()).strip(), "the arguments")
    rest = _expect(rest, "->", "the results")
    results, rest = _take_parenthesized(rest, "the results")
    _expect_end(rest)
    tensors = section.tensor_names
    section.steps.append(
        LibraryStep(
            function=match.group(),
            arguments=tuple(_parse_library_argument(piece, tensors, 0) for piece in arguments.split()),
            results=tuple(_whole_name(piece, "a result") for piece in results.split()),
            condition=condition,
            span=directive.value.span,
        )
    )


def _parse_library_argument(piece: Piece, tensors: set[str], depth: int) -> LibraryArgument:
    text = piece.text
    if text == "none":
        return None
    if text in tensors:
        return text
    if not text.startswith("["):
        return _parse_expression(piece, "an argument")
    if not text.endswith("]") or depth >= MAX_LIST_NESTING:
        raise _Fault(PlanCode.SYNTAX, "this list is not closed, or nested too deep", piece.span)
    inner = piece.part(1, len(text) - 1)
    return tuple(_parse_library_argument(part, tensors, depth + 1) for part in inner.split())


_READERS = {
    "where": _read_where,
    "scratch": _read_scratch,
    "fill": _read_fill,
    "launch": _read_launch,
    "library": _read_library,
}


# --- the smallest steps; each returns what it took and the stripped rest


def _take_name(piece: Piece, what: str) -> tuple[Piece, Piece]:
    match = _IDENTIFIER.match(piece.text)
    if match is None:
        raise _Fault(PlanCode.SYNTAX, f"expected {what}{_found(piece)}", _first(piece))
    name = piece.part(0, match.end())
    if name.text in RESERVED_NAMES:
        raise _Fault(PlanCode.BAD_NAME, f"'{name.text}' is a word of the plan and cannot be {what}", name.span)
    return name, piece.part(match.end()).strip()


def _whole_name(piece: Piece, what: str) -> str:
    name, rest = _take_name(piece, what)
    _expect_end(rest)
    return name.text


def _take_parenthesized(piece: Piece, what: str) -> tuple[Piece, Piece]:
    if not piece.text.startswith("("):
        raise _Fault(PlanCode.SYNTAX, f"expected '(' and {what}{_found(piece)}", _first(piece))
    depth = 0
    for position, character in enumerate(piece.text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return piece.part(1, position), piece.part(position + 1).strip()
    raise _Fault(PlanCode.SYNTAX, f"the '(' before {what} is not closed", piece.part(0, 1).span)


def _cut(piece: Piece, mark: str, what: str) -> tuple[Piece, Piece]:
    position = piece.text.find(mark)
    if position < 0:
        raise _Fault(PlanCode.SYNTAX, f"expected {what}", piece.span)
    return piece.part(0, position), piece.part(position + len(mark))


def _expect(piece: Piece, mark: str, what: str) -> Piece:
    if not piece.text.startswith(mark):
        raise _Fault(PlanCode.SYNTAX, f"expected '{mark}' and {what}{_found(piece)}", _first(piece))
    return piece.part(len(mark)).strip()


def _expect_end(piece: Piece) -> None:
    if piece.text:
        raise _Fault(PlanCode.SYNTAX, f"unexpected '{_shorten(piece.text)}' after the end", piece.span)


def _parse_expression(piece: Piece, what: str) -> Expression:
    if not piece.text.strip():
        raise _Fault(PlanCode.SYNTAX, f"expected {what} here", piece.span)
    try:
        return parse_expression_text(piece.text)
    except ExpressionError as error:
        message = f"'{_shorten(piece.text)}' is not {what}: {error.message}"
        raise _Fault(PlanCode.BAD_EXPRESSION, message, _first(piece.part(error.column))) from None


def _first(piece: Piece) -> Span:
    return piece.part(0, 1).span


def _found(piece: Piece) -> str:
    return f", and found '{_shorten(piece.text)}'" if piece.text else ""


def _shorten(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
