"""The functions of a CUDA file, with what the rules ask about them: variables, their types, and nodes by type."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from tree_sitter import Node, Query, QueryCursor

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.parsing import ParsedCuda, language
from kernel_lsp.rules.once import once
from kernel_lsp.rules.words import words

LOOPS = frozenset(("for_statement", "while_statement", "do_statement", "for_range_loop"))
_IDENTIFIER = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*|(?<=\.)(?:thread_rank|thread_index|block_rank|group_index)\b")
"""Names in an expression without its fields, but with the methods of cooperative groups that name a thread."""
_IN_NAMES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_BEFORE_NO_NAME = _IN_NAMES | frozenset(b".")
_INTEGER = re.compile(r"(?:0[xX][0-9a-fA-F']+|[0-9][0-9']*)[uUlL]*")
_DOUBLE = re.compile(
    rb"[\d.](?<![\w.'][\d.])(?:(?<=\d)[\d']*\.[\d']*|(?<=\.)\d[\d']*|(?<=\d)[\d']*(?=[eE]))"
    rb"(?:[eE][+-]?\d+)?(?![a-zA-Z0-9.'])"
)
"""``0.5``, ``.5`` or ``1e3`` without a suffix. It begins with a character, which is what a search is fast for."""
_LAUNCH_BOUNDS = re.compile(rb"launch_bounds", re.IGNORECASE)
MAX_CONSTANT = 1 << 63
CONDITIONAL_COMPILATION = ("preproc_if", "preproc_el")
"""How the types of nodes for `#if` and `#else` begin."""
MAX_PLAN_CHARACTERS = 5000
"""Of the file, within which a launch plan's conditions are looked for."""
MAX_PARENTS_ASKED = 64
"""Of one node, before the parents of all nodes are noted."""
MAX_DEPTH = 60
"""Of an expression that is evaluated: beyond it nothing is known."""
_TYPE_BYTES = {
    **dict.fromkeys(("char", "signed char", "unsigned char", "bool", "int8_t", "uint8_t", "__nv_fp8_e4m3"), 1),
    **dict.fromkeys(("short", "unsigned short", "half", "__half", "__nv_bfloat16", "nv_bfloat16", "int16_t"), 2),
    **dict.fromkeys(("uint16_t", "at::Half", "at::BFloat16"), 2),
    **dict.fromkeys(("int", "unsigned", "unsigned int", "float", "int32_t", "uint32_t", "half2", "__half2"), 4),
    **dict.fromkeys(("__nv_bfloat162", "nv_bfloat162"), 4),
    **dict.fromkeys(("double", "long long", "unsigned long long", "int64_t", "uint64_t", "float2", "int2"), 8),
    **dict.fromkeys(("size_t", "long", "unsigned long", "uint2"), 8),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 16),
}
"""Sizes of types on 64-bit Linux, bytes."""
INTEGER_TYPES = words(
    """
    int unsigned long short size_t int64_t int32_t uint32_t uint64_t char int16_t uint16_t ptrdiff_t
    """
)
WIDE_INTEGERS = frozenset(("size_t", "int64_t", "uint64_t", "ptrdiff_t"))


Meaning = str | tuple
"""See `Function.meaning`."""


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """What the text of a type says. `element` is the type without qualifiers and storage."""

    words: frozenset[str]
    element: str
    is_shared: bool
    is_const: bool
    is_integer: bool
    is_wide: bool


@dataclass(slots=True, eq=False)
class Variable:
    """A parameter or local variable. `type_text` has its qualifiers; `sizes` are the nodes of its array extents."""

    name: str
    type_text: str
    declaration: Node
    name_node: Node
    is_pointer: bool = False
    is_reference: bool = False
    is_array: bool = False
    sizes: tuple[Node | None, ...] = ()
    value: Node | None = None
    writes: list[Node] = field(default_factory=list)
    """Assignments and updates of the variable itself."""
    scope: tuple[int, int] = (0, 0)
    """The bytes in which the name means this variable, if nothing inside declares it again."""

    @property
    def words(self) -> frozenset[str]:
        return type_facts(self.type_text).words

    @property
    def element(self) -> str:
        return type_facts(self.type_text).element

    @property
    def is_shared(self) -> bool:
        return type_facts(self.type_text).is_shared

    @property
    def is_const(self) -> bool:
        return type_facts(self.type_text).is_const

    @property
    def is_integer(self) -> bool:
        return not self.is_pointer and not self.is_array and type_facts(self.type_text).is_integer

    @property
    def is_wide_integer(self) -> bool:
        """Whether it is an integer of 64 bits."""
        return self.is_integer and type_facts(self.type_text).is_wide


@lru_cache(maxsize=4096)
def type_facts(type_text: str) -> TypeFacts:
    """The facts of a type, which files repeat over and over."""
    all_words = re.findall(r"\w+", type_text)
    words = frozenset(all_words)
    return TypeFacts(
        words=frozenset(_IDENTIFIER.findall(type_text)),
        element=" ".join(word for word in re.findall(r"[\w:]+", type_text) if word not in _QUALIFIERS),
        is_shared="__shared__" in type_text,
        is_const="const" in words or "constexpr" in words,
        is_integer=not words.isdisjoint(INTEGER_TYPES),
        is_wide="long" in words or not words.isdisjoint(WIDE_INTEGERS),
    )


_QUALIFIERS = words(
    """
    const volatile __shared__ __restrict__ __restrict restrict static extern constexpr register inline
    __constant__ __device__ alignas
    """
)


class _NodesOf:
    """The nodes of some types in a function's body, in the order of the text; put in order when first asked for."""

    def __init__(self, *types: str) -> None:
        self.patterns, self.name = tuple(f"({node_type})" for node_type in types), ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, function: Function, owner: type) -> list[Node]:
        nodes = function.__dict__[self.name] = _in_order(function.captured.get(self.name, []))
        return nodes


class _BinariesWith(_NodesOf):
    """The binary expressions with any of some operators: those with others, the most nodes of all, are never made. It
    is the operators that are looked for: a pattern for a node with a part stays open for as long as the node is, and a
    sum of 500 terms is 500 nodes in each other."""

    def __init__(self, *operators: str) -> None:
        super().__init__()
        self.patterns = tuple(f'"{operator}"' for operator in operators)

    def __get__(self, function: Function, owner: type) -> list[Node]:
        around = [token.parent for token in function.captured.get(self.name, [])]
        binaries = [node for node in around if node is not None and node.type == "binary_expression"]
        function.__dict__[self.name] = _in_order(binaries)
        return binaries


@dataclass(eq=False)
class Function:
    """A function definition. What only some rules ask for is read when one asks."""

    file: CudaFile
    node: Node
    name: str
    name_node: Node
    declarator: Node
    body: Node
    is_kernel: bool
    is_device: bool
    is_template_of_types: bool
    is_conditionally_compiled: bool
    caches: dict[str, dict] = field(default_factory=dict)
    callees: dict[int, str] = field(default_factory=dict)
    growths: dict[Meaning, Any] = field(default_factory=dict)

    calls = _NodesOf("call_expression")
    subscripts = _NodesOf("subscript_expression")
    assignments = _NodesOf("assignment_expression")
    updates = _NodesOf("update_expression")
    divisions = _BinariesWith("/")
    quotients = _BinariesWith("/", "%")
    connections = _BinariesWith("&&", "||")
    conditionals = _NodesOf("conditional_expression")
    loops = _NodesOf(*LOOPS)
    branches = _NodesOf("if_statement", "switch_statement")
    returns = _NodesOf("return_statement")
    allocations = _NodesOf("new_expression", "delete_expression")
    sizeofs = _NodesOf("sizeof_expression")
    lambdas = _NodesOf("lambda_expression")
    declarations = _NodesOf("declaration")

    @once
    def captured(self) -> dict[str, list[Node]]:
        """The nodes of all these lists, unordered. One query finds them all, much faster than a walk here."""
        return _cursor().captures(self.body)

    @once
    def parameters(self) -> list[Variable]:
        return list(_parameters(self.declarator, self.body, self.file))

    @once
    def variables(self) -> dict[str, list[Variable]]:
        """The parameters and local variables by their names, in the order of the text."""
        return _read_variables(self)

    @property
    def is_on_device(self) -> bool:
        return self.is_kernel or self.is_device

    @once
    def text(self) -> str:
        return self.source(self.node)

    @property
    def is_empty(self) -> bool:
        """Whether no name stands in the body."""
        return _IDENTIFIER.search(self.source(self.body)) is None

    def mentions(self, name: str) -> Iterator[int]:
        """Where the name stands in the body, other than as a field. A search for the text, since a pattern for each
        name would have to be compiled."""
        data, end, word = self.file.parsed.data, self.body.end_byte, name.encode()
        start = data.find(word, self.body.start_byte, end)
        while start >= 0:
            after = start + len(word)
            is_whole = data[start - 1] not in _BEFORE_NO_NAME and data[after] not in _IN_NAMES
            if is_whole and data[start - 2 : start] != b"->":
                yield start
            start = data.find(word, after, end)

    @once
    def head(self) -> str:
        """The text in front of the body."""
        data = self.file.parsed.data[self.node.start_byte : self.body.start_byte]
        return data.decode("utf-8", errors="replace")

    @once
    def source(self) -> Callable[[Node], str]:
        """The text of a node."""
        return self.file.parsed.source

    @once
    def calls_by_name(self) -> dict[str, list[Node]]:
        """The calls by what they name. Most rules look for a few names that most functions do not have."""
        found: dict[str, list[Node]] = {}
        for call in self.calls:
            found.setdefault(self.callee(call), []).append(call)
        return found

    def calls_named(self, names: Container[str]) -> list[Node]:
        """The calls of any of the names."""
        found = [calls for name, calls in self.calls_by_name.items() if name in names]
        return found[0] if len(found) == 1 else sorted((call for calls in found for call in calls), key=_start)

    @once
    def doubles(self) -> list[Node]:
        """The literals of doubles in the body, in the order of the text. They are found by their text, since there are
        few of them among many numbers."""
        places, body = self.file.doubles_at, self.body
        inside = places[bisect_left(places, body.start_byte) : bisect_left(places, body.end_byte)]
        nodes = [body.descendant_for_byte_range(start, start + 1) for start in inside]
        return [node for node in nodes if node is not None and node.type == "number_literal"]

    def callee(self, call: Node) -> str:
        """The name that a call names, without template arguments."""
        cache = self.callees
        name = cache.get(call.id)
        if name is None:
            function = call.child_by_field_id(fields.FUNCTION)
            name = "" if function is None else self.source(function).split("<", 1)[0].strip()
            cache[call.id] = name
        return name

    def arguments(self, call: Node) -> list[Node]:
        arguments = call.child_by_field_id(fields.ARGUMENTS)
        return [] if arguments is None else [child for child in arguments.named_children if child.type != "comment"]

    def around(self, node: Node) -> Iterator[Node]:
        """The nodes around `node` within the body, from the inside out."""
        depth = 0
        while (parent := self.parent(node)) is not None:
            yield parent
            node, depth = parent, depth + 1
            if depth == MAX_PARENTS_ASKED:
                self.caches["parents"] = self.all_parents

    @once
    def all_parents(self) -> dict[int, Node | None]:
        """The node around each node of the body. The tree finds one parent from its root down, which takes as long as
        it is deep: where code is nested beyond all measure, one walk that notes them all is much faster."""
        found: dict[int, Node | None] = {}
        waiting = [self.body]
        while waiting:
            node = waiting.pop()
            for child in node.children:
                found[child.id] = node
                waiting.append(child)
        return found

    def parent(self, node: Node | None) -> Node | None:
        """The node around `node`, None for the body itself."""
        if node is None or node.id == self.body.id:
            return None
        cache = self.caches.setdefault("parents", {})
        if node.id not in cache:
            cache[node.id] = node.parent
        return cache[node.id]

    def loop_around(self, node: Node) -> Node | None:
        return next((parent for parent in self.around(node) if parent.type in LOOPS), None)

    def names_in(self, node: Node | None) -> frozenset[str]:
        """Every identifier in the node's text, field names too."""
        if node is None:
            return frozenset()
        cache, text = self.file.names, self.source(node)
        names = cache.get(text)
        if names is None:
            names = cache[text] = frozenset(_IDENTIFIER.findall(text))
        return names

    def meaning(self, node: Node) -> Meaning:
        """What is the same for expressions that say the same: their text, and which variables it is about if the
        function has several of a name."""
        text = self.source(node)
        if not self.repeated:
            return text
        names = self.names_in(node)
        if self.repeated.isdisjoint(names):
            return text
        place = node.start_byte
        return (text, *(id(_visible_at(place, self.variables[name])) for name in names & self.repeated))

    @once
    def repeated(self) -> frozenset[str]:
        """The names of which there are several variables."""
        return frozenset(name for name, variables in self.variables.items() if len(variables) > 1)

    def variable(self, node: Node | None) -> Variable | None:
        """The variable that a name stands for where it is; None for other nodes and names from outside."""
        if node is None or node.type != "identifier":
            return None
        known = self.variables.get(self.source(node))
        return None if known is None else _visible_at(node.start_byte, known)

    def named(self, name: str) -> list[Variable]:
        """Every variable with this name, parameters first."""
        return self.variables.get(name, [])

    def all_variables(self) -> Iterator[Variable]:
        for variables in self.variables.values():
            yield from variables

    def declared_in(self, node: Node) -> frozenset[str]:
        """The names of the variables that are declared within the node."""
        return _names_between(self._declared_at, node)

    def written_in(self, node: Node) -> frozenset[str]:
        """The names of the variables that are written within the node, other than where they are declared."""
        return _names_between(self._written_at, node)

    @once
    def _declared_at(self) -> list[tuple[int, str]]:
        """Where each variable is declared, in the order of the text: a search per loop, not a walk over all of them."""
        return sorted((variable.declaration.start_byte, variable.name) for variable in self.all_variables())

    @once
    def _written_at(self) -> list[tuple[int, str]]:
        return sorted((write.start_byte, v.name) for v in self.all_variables() for write in v.writes)

    def conditions(self) -> Iterator[Node]:
        """What `if`, loops, `?:`, `&&` and `||` decide on."""
        for node in (*self.branches, *self.loops, *self.conditionals):
            condition = node.child_by_field_id(fields.CONDITION)
            if condition is not None:
                yield condition
        yield from self.connections

    def operator(self, node: Node) -> str:
        operator = node.child_by_field_id(fields.OPERATOR)
        return "" if operator is None else operator.type

    def constant(self, node: Node | None, depth: int = 0) -> int | None:
        """The value of a constant integer expression; None when the text does not say."""
        return self.file.constant(node, self, depth)


@dataclass(frozen=True, slots=True)
class Definition:
    """A function definition as the outline finds it. `outer` is its template declaration, or itself."""

    node: Node
    outer: Node
    is_conditionally_compiled: bool


@dataclass(eq=False)
class CudaFile:
    """A parsed file: `constants` are its `#define`s, `constexpr`s and enumerators that are integers."""

    parsed: ParsedCuda
    definitions: list[Definition] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    """Functions that are declared without a body."""
    names: dict[str, frozenset[str]] = field(default_factory=dict)
    """Those in texts of expressions, which repeat."""
    _words: list[tuple[str, int]] | None = None

    def source(self, node: Node) -> str:
        return self.parsed.source(node)

    @once
    def context(self) -> tuple[frozenset, frozenset]:
        """What a function can see of the file."""
        return frozenset(self.constants.items()), frozenset(self.declared)

    @once
    def launch_bounds_at(self) -> list[int]:
        """Where launch bounds are mentioned, or a macro with them."""
        return [match.start() for match in _LAUNCH_BOUNDS.finditer(self.parsed.data)]

    @once
    def doubles_at(self) -> list[int]:
        """Where a literal of a double may stand, in comments too."""
        return [match.start() for match in _DOUBLE.finditer(self.parsed.data)]

    def words_among(self, words: tuple[tuple[str, int], ...]) -> list[tuple[str, int]]:
        """Those that the file has anywhere. Which `words` they are taken from is always the same."""
        if self._words is None:
            self._words = [(word, bit) for word, bit in words if word in self.parsed.text]
        return self._words

    @once
    def promises_divisibility(self) -> bool:
        """Whether a `where:` line of the launch plan has a remainder, as in ``N % 256 == 0``."""
        lines = self.parsed.text[:MAX_PLAN_CHARACTERS].splitlines()
        return any("where:" in line and "%" in line for line in lines if line.lstrip().startswith("//"))

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
            return _apply(self.source(operator), left, right)
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


def integer_literal(text: str) -> int | None:
    """``0x10u`` -> 16; None for a text that is no integer literal."""
    if not _INTEGER.fullmatch(text) or len(text) > 40:
        return None
    digits = text.rstrip("uUlL").replace("'", "")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX":
        return int(digits, 8) if all(digit in "01234567" for digit in digits) else None
    return int(digits, 0) if digits[:2] != "0x" or len(digits) > 2 else None


def within(nodes: list[Node], outer: Node) -> list[Node]:
    """Those of `nodes`, which are in the order of the text, that start within `outer`."""
    first = bisect_left(nodes, outer.start_byte, key=_start)
    return nodes[first : bisect_left(nodes, outer.end_byte, lo=first, key=_start)]


def type_bytes(type_text: str) -> int | None:
    """Bytes of a builtin type, None for others."""
    return _TYPE_BYTES.get(" ".join(type_text.split()))


def read_outline(parsed: ParsedCuda) -> CudaFile:
    """What stands outside of function bodies."""
    file = CudaFile(parsed)
    stack: list[tuple[Node, bool]] = [(parsed.tree.root_node, False)]
    while stack:
        node, is_conditional = stack.pop()
        kind = node.type
        if kind == "function_definition":
            parent = node.parent
            is_template = parent is not None and parent.type == "template_declaration"
            file.definitions.append(Definition(node, parent if is_template else node, is_conditional))  # type: ignore[arg-type]
        elif kind in ("preproc_def", "enumerator"):
            _read_named_value(node, file)
        elif kind == "declaration":
            _read_outer_declaration(node, file)
        elif kind not in _NOT_ENTERED:
            inside = is_conditional or kind.startswith(CONDITIONAL_COMPILATION)
            stack.extend((child, inside) for child in reversed(node.named_children))
    return file


def read_function(definition: Definition, file: CudaFile) -> Function | None:
    """The function with its variables and nodes, None for a definition without a readable body."""
    node = definition.node
    declarator = _function_declarator(node)
    body = node.child_by_field_id(fields.BODY)
    if declarator is None or body is None or body.type != "compound_statement":
        return None
    name = declarator.child_by_field_id(fields.DECLARATOR) or declarator
    head = file.parsed.data[node.start_byte : body.start_byte]
    return Function(
        file=file,
        node=node,
        name=file.source(name),
        name_node=name,
        declarator=declarator,
        body=body,
        is_kernel=b"__global__" in head,
        is_device=b"__device__" in head,
        is_template_of_types=_has_type_parameter(definition.outer),
        is_conditionally_compiled=definition.is_conditionally_compiled,
    )


def plain_name(definition: Definition) -> Node | None:
    """The name of a function if it is one word of no namespace."""
    declarator = _function_declarator(definition.node)
    name = None if declarator is None else declarator.child_by_field_id(fields.DECLARATOR)
    return name if name is not None and name.type == "identifier" else None


# --- below: what stands outside of functions

_NOT_ENTERED = words(
    """
    parameter_list template_parameter_list string_literal preproc_arg comment preproc_include
    preproc_function_def preproc_call expression_statement field_declaration alias_declaration
    using_declaration type_definition
    """
)
_DEFINE_INTEGER = re.compile(r"\(?\s*((?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*)\s*\)?\s*(?://.*|/\*.*)?", re.DOTALL)


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
    is_constant = any(
        child.type in ("type_qualifier", "constexpr") and file.source(child) in ("constexpr", "const")
        for child in node.children
    )
    for child in node.named_children:
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


def _apply(operator: str, left: int, right: int) -> int | None:
    if operator in ("/", "%"):
        if right == 0:
            return None
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator in ("<<", ">>"):
        if not 0 <= right < 64:
            return None
        return left << right if operator == "<<" else left >> right
    return {"+": left + right, "-": left - right, "*": left * right}.get(operator)


# --- one function


@lru_cache(maxsize=1)
def _cursor() -> QueryCursor:
    lists = [found for found in vars(Function).values() if isinstance(found, _NodesOf)]
    patterns = [f"{pattern} @{found.name}" for found in lists for pattern in found.patterns]
    return QueryCursor(Query(language(), "\n".join(patterns)))


_start, _end = attrgetter("start_byte"), attrgetter("end_byte")


def _in_order(nodes: list[Node]) -> list[Node]:
    """In the order of a walk from the root: what is around a node stands before it."""
    if len(nodes) > 1:
        nodes.sort(key=_end, reverse=True)
        nodes.sort(key=_start)
    return nodes


def _function_declarator(node: Node) -> Node | None:
    declarator = node.child_by_field_id(fields.DECLARATOR)
    for _ in range(MAX_DEPTH):
        if declarator is None or declarator.type == "function_declarator":
            return declarator
        declarator = declarator.child_by_field_id(fields.DECLARATOR) or next(
            (child for child in declarator.named_children if child.type.endswith("declarator")), None
        )
    return None


def _has_type_parameter(node: Node) -> bool:
    if node.type != "template_declaration":
        return False
    parameters = node.child_by_field_id(fields.PARAMETERS)
    kinds = () if parameters is None else tuple(child.type for child in parameters.named_children)
    return any("type_parameter" in kind for kind in kinds)


def _parameters(declarator: Node, body: Node, file: CudaFile) -> Iterator[Variable]:
    parameters = declarator.child_by_field_id(fields.PARAMETERS)
    for node in () if parameters is None else parameters.named_children:
        if node.type in ("parameter_declaration", "optional_parameter_declaration"):
            inner = node.child_by_field_id(fields.DECLARATOR)
            variable = None if inner is None else _variable(node, inner, None, inner.start_byte, file)
            if variable is not None:
                variable.is_pointer = variable.is_pointer or variable.is_array
                variable.is_array = False
                variable.scope = (body.start_byte, body.end_byte)
                yield variable


def _variable(
    declaration: Node, declarator: Node, value: Node | None, end_of_type: int, file: CudaFile
) -> Variable | None:
    """The variable that a declarator declares, None for functions and text that is not one."""
    is_pointer = is_array = is_reference = False
    sizes: list[Node | None] = []
    node: Node | None = declarator
    kind = declarator.type
    parsed = file.parsed
    for _ in range(MAX_DEPTH):
        if kind == "identifier" or node is None:
            break
        if kind == "pointer_declarator":
            is_pointer = True
        elif kind == "array_declarator":
            is_array = True
            sizes.append(node.child_by_field_id(fields.SIZE))
        elif kind == "reference_declarator":
            is_reference = True
        elif kind == "function_declarator":
            return None
        node = node.child_by_field_id(fields.DECLARATOR) or next(
            (c for c in node.named_children if c.type.endswith("declarator") or c.type == "identifier"), None
        )
        kind = "" if node is None else node.type
    if node is None or kind != "identifier":
        return None
    return Variable(
        name=parsed.source(node),
        type_text=parsed.between(declaration.start_byte, end_of_type).strip(),
        declaration=declaration,
        name_node=node,
        is_pointer=is_pointer,
        is_reference=is_reference,
        is_array=is_array,
        sizes=tuple(reversed(sizes)),
        value=value,
    )


def _read_variables(function: Function) -> dict[str, list[Variable]]:
    known: dict[str, list[Variable]] = {}
    for variable in function.parameters:
        known.setdefault(variable.name, []).append(variable)
    for node in function.declarations:
        for variable in _declared(function, node):
            known.setdefault(variable.name, []).append(variable)
    for write in (*function.assignments, *function.updates):
        target = write.child_by_field_id(fields.LEFT) or write.child_by_field_id(fields.ARGUMENT)
        if target is not None and target.type == "identifier":
            written = _visible_at(target.start_byte, known.get(function.source(target), []))
            if written is not None:
                written.writes.append(write)
    return known


def _visible_at(place: int, known: list[Variable]) -> Variable | None:
    """The one of the variables of a name that it means at the byte `place`; they are in the order of the text, and the
    innermost begins last."""
    if len(known) == 1:
        scope = known[0].scope
        return known[0] if scope[0] <= place < scope[1] else None
    for index in range(bisect_right(known, place, key=_scope_start) - 1, -1, -1):
        if place < known[index].scope[1]:
            return known[index]
    return None


def _names_between(places: list[tuple[int, str]], node: Node) -> frozenset[str]:
    first = bisect_left(places, (node.start_byte, ""))
    return frozenset(name for _, name in places[first : bisect_left(places, (node.end_byte, ""), lo=first)])


def _scope_start(variable: Variable) -> int:
    return variable.scope[0]


def _declared(function: Function, node: Node) -> Iterator[Variable]:
    """The variables of one declaration."""
    declarators = node.children_by_field_id(fields.DECLARATOR)
    end_of_type = declarators[0].start_byte if declarators else node.start_byte
    for child in declarators:
        value = None
        declarator = child
        if child.type == "init_declarator":
            value = child.child_by_field_id(fields.VALUE)
            declarator = child.child_by_field_id(fields.DECLARATOR) or child
        else:
            value = node.child_by_field_id(fields.VALUE)  # `if (int q = f())`
        if value is not None and value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
            value = value.named_children[0]
        variable = _variable(node, declarator, value, end_of_type, function.file)
        if variable is not None:
            block = function.parent(node)
            if block is not None and block.type == "condition_clause":
                block = function.parent(block)
            end = function.body.end_byte if block is None else block.end_byte
            variable.scope = (variable.name_node.start_byte, end)
            yield variable
