"""What stands outside of function bodies in a CUDA file, and what its functions can see of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tree_sitter import Node

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.body_index import Inside
from kernel_lsp.rules.cuda.constants import applied, integer_literal
from kernel_lsp.rules.cuda.edit_window import Window, carried_places
from kernel_lsp.rules.cuda.node_list import Found
from kernel_lsp.rules.cuda.parsing import ParsedCuda, Part, Shape
from kernel_lsp.rules.cuda.repeated import RepeatedArgument, repeated_arguments
from kernel_lsp.rules.cuda.type_text import IDENTIFIER, type_bytes
from kernel_lsp.rules.words import words

if TYPE_CHECKING:
    from kernel_lsp.rules.cuda.model import Function

MIN_LONG_BYTES = 8192
"""Of a function. The nodes of a shorter one are found in less than 2 ms."""
MAX_CONSTANT = 1 << 63
MAX_DEPTH = 60
"""Of an expression that is evaluated: beyond it nothing is known."""
MAX_PLAN_CHARACTERS = 5000
"""Of the file, within which a launch plan's conditions are looked for."""
CONDITIONAL_COMPILATION = ("preproc_if", "preproc_el")
"""How the types of nodes for `#if` and `#else` begin."""
_NOT_ENTERED = words(
    """
    parameter_list template_parameter_list string_literal preproc_arg comment preproc_include
    preproc_function_def preproc_call expression_statement field_declaration alias_declaration
    using_declaration type_definition
    """
)
_DEFINE_INTEGER = re.compile(r"\(?\s*((?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*)\s*\)?\s*(?://.*|/\*.*)?", re.DOTALL)
_IS_PLAN = re.compile(r"\s*//\s*(?:where|launch)\b").match
_LAUNCH_BOUNDS = b"launch_bounds"
_POINT = re.compile(rb"\.(?:(?<=[\d']\.)|(?=\d))[\d']*(?:[eE][+-]?\d+)?(?![a-zA-Z0-9.'])")
"""The point of ``0.5``, ``5.`` or ``.5e3`` without a suffix. It begins with a character, which a search is fast for."""
_EXPONENT = re.compile(rb"[eE](?<=[\d'][eE])[+-]?\d+(?![a-zA-Z0-9.'])")
"""The exponent of ``1e3`` without a suffix."""


_KERNEL_TEXT = re.compile(r"__global__[^;{}]*?\b(\w+)\s*\([^;{}]*\)\s*\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_CONDITION = re.compile(r"\b(?:if|for|while|return|min)\b|\?")
_GRID_INDEX = re.compile(r"\bblockIdx\.x\s*\*\s*blockDim\.x\s*\+\s*threadIdx\.x\b")


class Definition:
    """A function definition as the outline finds it. `outer` is its template declaration, or itself. It is the same for
    all texts of one shape."""

    def __init__(self, node: Node, outer: Node, is_conditionally_compiled: bool) -> None:
        self.node, self.outer, self.is_conditionally_compiled = node, outer, is_conditionally_compiled
        self.found_patterns: dict[tuple[re.Pattern[str], ...], bool] = {}
        """Whether the patterns of a check have their places in its text, as far as that is known. Patterns take all
        digits but zero for the same, as shapes do."""

    @once
    def declarator(self) -> Node | None:
        """That of the function; None for text that declares none."""
        return _function_declarator(self.node)

    @once
    def plain_name(self) -> Node | None:
        """The function's name if it is one word of no namespace."""
        name = None if self.declarator is None else self.declarator.child_by_field_id(fields.DECLARATOR)
        return name if name is not None and name.type == "identifier" else None

    @once
    def body(self) -> Node | None:
        """None for text that is none of statements."""
        body = self.node.child_by_field_id(fields.BODY)
        return body if body is not None and body.type == "compound_statement" else None

    @once
    def extent(self) -> tuple[int, int]:
        """The bytes of its body."""
        return (0, 0) if self.body is None else (self.body.start_byte, self.body.end_byte)

    @property
    def is_long(self) -> bool:
        """Whether it takes less time to carry over what is known of its nodes than to look for them again."""
        node = self.node
        return (
            node.end_byte - node.start_byte >= MIN_LONG_BYTES and self.declarator is not None and self.extent != (0, 0)
        )

    @once
    def inside(self) -> Inside:
        """For a function that has a declarator and a body."""
        assert self.declarator is not None
        assert self.body is not None
        return Inside(self.declarator, self.body)

    def rest(self) -> None:
        """Keep no nodes of a long function until it is asked for again."""
        if self.is_long:
            self.__dict__["inside"] = self.inside.without_nodes()

    def forget(self) -> None:
        """What is known of the nodes inside, and what is carried over from the tree before an edit."""
        self.__dict__.pop("inside", None)


@dataclass(eq=False)
class Outline:
    """A parsed file: `constants` are its `#define`s, `constexpr`s and enumerators that are integers."""

    parsed: ParsedCuda
    definitions: list[tuple[CudaFile, Definition]] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    """Functions that are declared without a body."""

    @once
    def context(self) -> tuple[frozenset, frozenset]:
        """What a function can see of the file."""
        return frozenset(self.constants.items()), frozenset(self.declared)

    @once
    def launch_bounds_at(self) -> list[int]:
        """Where launch bounds are mentioned, or a macro with them."""
        return _places(self.parsed.data.lower(), _LAUNCH_BOUNDS)

    @once
    def repeated_arguments(self) -> dict[str, tuple[RepeatedArgument, ...]]:
        """By kernel: what its launches pass twice."""
        return repeated_arguments(self.parsed.text)

    @once
    def unchecked_kernels(self) -> frozenset[str]:
        """The kernels without any condition that have one element for each thread of the grid: launches are held
        against what they are given."""
        if b"cudaMalloc" not in self.parsed.data or b"<<<" not in self.parsed.data:
            return frozenset()
        return frozenset(found[1] for found in _KERNEL_TEXT.finditer(self.parsed.text) if _is_unchecked(found[2]))

    @once
    def fits_its_launches(self) -> bool:
        """Whether the launch plan says that no block stands out: a `where:` line has a remainder, as in
        ``N % 256 == 0``, or no launch divides, and so rounds, to get its grid."""
        plan = [line.lstrip()[2:] for line in self.parsed.text[:MAX_PLAN_CHARACTERS].splitlines() if _IS_PLAN(line)]
        launches = [line for line in plan if "<<<" in line]
        is_exact = bool(launches) and not any("ceil_div" in line or "/" in line for line in launches)
        return is_exact or any("where:" in line and "%" in line for line in plan)


class CudaFile:
    """The file as the functions in one part of it see it."""

    def __init__(self, parsed: Part, outline: Outline) -> None:
        self.parsed, self.outline = parsed, outline
        self.constants, self.declared = outline.constants, outline.declared

    @property
    def fits_its_launches(self) -> bool:
        return self.outline.fits_its_launches

    @property
    def repeated_arguments(self) -> dict[str, tuple[RepeatedArgument, ...]]:
        return self.outline.repeated_arguments

    @once
    def source(self) -> Callable[[Node], str]:
        """The text of a node."""
        text = self.parsed.ascii_text
        if text is None:
            return self.parsed.source
        return lambda node: text[node.start_byte : node.end_byte]

    def texts(self, nodes: Found) -> list[str]:
        """The text of each."""
        text, spans = self.parsed.ascii_text, zip(nodes.starts, nodes.ends, strict=True)
        if text is None:
            return [self.parsed.between(start, end) for start, end in spans]
        return [text[start:end] for start, end in spans]

    def names_in(self, node: Node | None) -> frozenset[str]:
        """Every identifier in the node's text, field names too."""
        return frozenset() if node is None else names_in_text(self.source(node))

    @once
    def doubles_at(self) -> list[int]:
        """Places in literals that may be doubles, in comments too; a literal may have two of them."""
        shape = self.parsed.shape
        if shape.doubles_at is None:
            shape.doubles_at = _places_of_doubles(self.parsed.data, 0, len(self.parsed.data))
        return shape.doubles_at

    def constant(self, node: Node | None, function: Function | None = None, depth: int = 0) -> int | None:
        """The value of a constant integer expression; None when the text does not say, or it is out of range."""
        if node is None or depth > MAX_DEPTH:
            return None
        value = self._constant(node, function, depth)
        return value if value is not None and abs(value) < MAX_CONSTANT else None

    def _constant(self, node: Node, function: Function | None, depth: int) -> int | None:
        kind = node.type
        if kind == "number_literal":
            return integer_literal(self.source(node))
        if kind in ("parenthesized_expression", "template_argument_list") and node.named_child_count == 1:
            return self.constant(node.named_children[0], function, depth + 1)
        if kind == "identifier":
            return self._named_constant(node, function, depth)
        if kind == "binary_expression":
            left = self.constant(node.child_by_field_id(fields.LEFT), function, depth + 1)
            right = self.constant(node.child_by_field_id(fields.RIGHT), function, depth + 1)
            operator = node.child_by_field_id(fields.OPERATOR)
            if left is None or right is None or operator is None:
                return None
            return applied(self.source(operator), left, right)
        if kind == "sizeof_expression":
            return type_bytes(self.source(node).removeprefix("sizeof").strip(" ()"))
        return None

    def _named_constant(self, node: Node, function: Function | None, depth: int) -> int | None:
        name = self.source(node)
        if function is not None and name in function.variables:
            variable = function.variable(node)
            is_fixed = variable is not None and variable.is_const and not variable.is_pointer and not variable.writes
            return self.constant(variable.value, function, depth + 1) if is_fixed and variable is not None else None
        return self.constants.get(name)


def read_outline(parsed: ParsedCuda) -> Outline:
    """What stands outside of function bodies."""
    outline = Outline(parsed)
    for part in parsed.parts:
        file = CudaFile(part, outline)
        for item in _items_of(part):
            if isinstance(item, Definition):
                outline.definitions.append((file, item))
            elif item.type == "declaration":
                _read_outer_declaration(item, file)
            else:
                _read_named_value(item, file)
    return outline


# --- below: names in texts

MAX_KEPT_NAMES, MAX_NAMED_CHARACTERS = 16384, 400
"""Texts of which the names are kept, and how long each is at most."""
_names: dict[str, frozenset[str]] = {}
"""Those in texts of expressions, which repeat, and stay as they were when others are edited."""


def names_in_text(text: str) -> frozenset[str]:
    """Every identifier in the text of an expression, field names too."""
    names = _names.get(text)
    return _names_of(text) if names is None else names


def _names_of(text: str) -> frozenset[str]:
    is_one = text.isidentifier() and text.isascii()
    names = frozenset((text,) if is_one else IDENTIFIER.findall(text))
    if len(text) <= MAX_NAMED_CHARACTERS:
        if len(_names) >= MAX_KEPT_NAMES:
            _names.clear()
        _names[text] = names
    return names


# --- what stands outside of functions

Item = Definition | Node
"""A function definition, or the node of a declaration, of a `#define` or of an enumerator."""


def _items_of(part: Part) -> list[Item]:
    """The items of a tree, in the order of the text."""
    shape = part.shape
    known = shape.items
    if known is None:
        known = shape.items = list(_items(shape.tree.root_node))
        if shape.before is not None:
            _carry(part, *shape.before)
            shape.before = None
    return known


def _carry(part: Part, before: Shape, window: Window) -> None:
    """What is known of the tree before an edit that is the same of this one."""
    if before.doubles_at is not None:
        lines = window.with_lines(part.data)
        found = _places_of_doubles(part.data, lines.start, lines.new_end)
        part.shape.doubles_at = carried_places(before.doubles_at, lines, found)
    for definition, old in _long_ones(before.items or (), part.shape.items or (), window):
        definition.inside.carry(old.inside, window)


def _long_ones(
    before: Iterable[Item], items: Iterable[Item], window: Window
) -> Iterator[tuple[Definition, Definition]]:
    """Long functions whose bodies hold an edit or are away from it, with what they were."""
    old = {item.extent: item for item in before if isinstance(item, Definition) and item.is_long}
    for item in items:
        if isinstance(item, Definition) and item.is_long:
            known = old.get(_extent_before(item.extent, window))
            if known is not None:
                yield item, known


def _extent_before(extent: tuple[int, int], window: Window) -> tuple[int, int]:
    """Where a body stood that holds an edit or is away from it; nowhere for one of which it cuts an end."""
    start, end = extent
    if window.new_end <= start:
        return start - window.n_more, end - window.n_more
    if end <= window.start:
        return extent
    return (start, end - window.n_more) if start < window.start and window.new_end < end else (-1, -1)


def _items(root: Node) -> Iterator[Item]:
    stack: list[tuple[Node, Node, bool]] = [(root, root, False)]
    while stack:
        node, parent, is_conditional = stack.pop()
        kind = node.type
        if kind == "function_definition":
            outer = parent if parent.type == "template_declaration" else node
            yield Definition(node, outer, is_conditional)
        elif kind in ("preproc_def", "enumerator", "declaration"):
            yield node
        elif kind not in _NOT_ENTERED:
            inside = is_conditional or kind.startswith(CONDITIONAL_COMPILATION)
            stack.extend([(child, node, inside) for child in reversed(node.named_children)])


def _is_unchecked(body: str) -> bool:
    return _CONDITION.search(body) is None and _GRID_INDEX.search(body) is not None


def _places(data: bytes, word: bytes) -> list[int]:
    found: list[int] = []
    start = data.find(word)
    while start >= 0:
        found.append(start)
        start = data.find(word, start + len(word))
    return found


def _places_of_doubles(data: bytes, start: int, end: int) -> list[int]:
    """Those in the lines between two bytes. These ask which characters are digits, not which digits they are."""
    found = [match.start() for match in _POINT.finditer(data, start, end)]
    exponents = [match.start() for match in _EXPONENT.finditer(data, start, end)]
    return sorted(found + exponents) if exponents else found


def _function_declarator(node: Node) -> Node | None:
    declarator = node.child_by_field_id(fields.DECLARATOR)
    for _ in range(MAX_DEPTH):
        if declarator is None or declarator.type == "function_declarator":
            return declarator
        declarator = declarator.child_by_field_id(fields.DECLARATOR) or next(
            (child for child in declarator.named_children if child.type.endswith("declarator")), None
        )
    return None


def _read_named_value(node: Node, file: CudaFile) -> None:
    """A `#define` of an integer, or an enumerator with a value."""
    name, value = node.child_by_field_id(fields.NAME), node.child_by_field_id(fields.VALUE)
    if name is None or value is None:
        return
    if node.type == "enumerator":
        _add_constant(file, file.source(name), file.constant(value))
        return
    match = _DEFINE_INTEGER.fullmatch(file.source(value).strip())
    if match is not None:
        _add_constant(file, file.source(name), integer_literal(match[1]))


def _read_outer_declaration(node: Node, file: CudaFile) -> None:
    children = node.children
    is_constant = any(
        child.type in ("type_qualifier", "constexpr") and file.source(child) in ("constexpr", "const")
        for child in children
    )
    for child in children:
        if child.type == "function_declarator":
            name = child.child_by_field_id(fields.DECLARATOR)
            file.declared.add("" if name is None else file.source(name))
        elif child.type == "init_declarator" and is_constant:
            name, value = child.child_by_field_id(fields.DECLARATOR), child.child_by_field_id(fields.VALUE)
            if name is not None and name.type == "identifier":
                _add_constant(file, file.source(name), file.constant(value))


def _add_constant(file: CudaFile, name: str, value: int | None) -> None:
    """A name with two values (under `#if`) has none that we know."""
    if name in file.constants and file.constants[name] != value:
        value = None
    if value is None:
        file.constants.pop(name, None)
    else:
        file.constants[name] = value
