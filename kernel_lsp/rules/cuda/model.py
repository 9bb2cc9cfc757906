"""Model a function of a CUDA file for the rules: its variables, and its nodes by type."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tree_sitter import Node

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.definition import Definition
from kernel_lsp.rules.cuda.host.launch_shapes import LaunchShape
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.cuda.nodes import (
    LOOPS,
    BinariesWith,
    Found,
    Nesting,
    NodesOf,
    captured_in,
    doubles_in,
    next_mention,
)
from kernel_lsp.rules.cuda.outline import CudaFile
from kernel_lsp.rules.cuda.variables import Variable, parameters_of, variables_of, visible_at

MAX_PARENTS_ASKED = 64
"""Maximum parent lookups per node before the parents of all nodes are recorded at once."""

_SHARED_NAME = re.compile(r"smem|shmem|sdata|shared", re.IGNORECASE)

Meaning = str | tuple
"""A key of expressions with equal meaning; see `Function.meaning`."""


class Function:
    """A function definition. Data that few rules need is computed on first use."""

    calls = NodesOf("call_expression")
    subscripts = NodesOf("subscript_expression")
    assignments = NodesOf("assignment_expression")
    updates = NodesOf("update_expression")
    connections = BinariesWith("&&", "||")
    conditionals = NodesOf("conditional_expression")
    loops = NodesOf(*LOOPS)
    branches = NodesOf("if_statement", "switch_statement")
    returns = NodesOf("return_statement")
    allocations = NodesOf("new_expression", "delete_expression")
    sizeofs = NodesOf("sizeof_expression")
    lambdas = NodesOf("lambda_expression")
    declarations = NodesOf("declaration")

    def __init__(self, file: CudaFile, definition: Definition, declarator: Node, body: Node) -> None:
        self.file, self.definition, self.declarator, self.body = file, definition, declarator, body
        self.node = definition.node
        self.name_node = declarator.child_by_field_id(fields.DECLARATOR) or declarator
        self.source: Callable[[Node], str] = file.source
        """Return the text of a node."""
        self.names_in: Callable[[Node | None], frozenset[str]] = file.names_in
        head = file.parsed.data[self.node.start_byte : body.start_byte]
        self.is_kernel, self.is_device = b"__global__" in head, b"__device__" in head
        self.name, self.text = file.source(self.name_node), file.source(self.node)
        self.caches: dict[str, dict] = {}
        self.given: dict[str, int] = {}
        """The values of parameters, where the function is followed from a call."""
        self.arguments_given: dict[str, Node] = {}
        """The arguments of that call, by the names of the parameters."""
        self.growths: dict[Meaning, Any] = {}
        self.parents: dict[int, Node | None] = {}
        """The known parents, by node id."""
        self.has_all_parents = False

    @once
    def captured(self) -> dict[str, list[Node]]:
        """The nodes of every `NodesOf`, unordered."""
        return captured_in(self.body)

    def parent(self, node: Node | None) -> Node | None:
        """Return the parent of `node`, None for the body itself."""
        if node is None or node.id == self.body.id:
            return None
        if node.id not in self.parents:
            self.parents[node.id] = node.parent
        return self.parents[node.id]

    @once
    def parameters(self) -> list[Variable]:
        return list(parameters_of(self.file.parsed, self.declarator, self.body))

    @once
    def variables(self) -> dict[str, list[Variable]]:
        """The parameters and local variables by name, in source order."""
        return _read_variables(self)

    @property
    def is_on_device(self) -> bool:
        return self.is_kernel or self.is_device

    def mentions(self, name: str) -> Iterator[int]:
        """Yield the positions of the name in the body, other than as a field."""
        word = name.encode()
        start = self._next_mention(word, self.body.start_byte)
        while start >= 0:
            yield start
            start = self._next_mention(word, start + len(word))

    def _next_mention(self, word: bytes, start: int) -> int:
        return next_mention(self.file.parsed.data, word, start, self.body.end_byte)

    @once
    def template_head(self) -> str:
        """The text of the template before the function, empty without one."""
        return self.file.parsed.between(self.definition.outer.start_byte, self.node.start_byte)

    @once
    def head(self) -> str:
        """The text before the body."""
        data = self.file.parsed.data[self.node.start_byte : self.body.start_byte]
        return data.decode("utf-8", errors="replace")

    @once
    def key(self) -> str:
        """The key of the file's facts about this kernel."""
        return self.file.key_of(self.definition)

    def launched(self, call: Node) -> str:
        """Return the key of the kernel that a launch in this function is of; an empty text where several fit."""
        return self.file.launched(self.callee(call), len(self.arguments(call)))

    def calls_named(self, names: Collection[str]) -> list[Node]:
        """Return the calls of any of the names. Most rules search for a few names that most functions do not call."""
        calls = self.beginning(self.calls, tuple([name.encode() for name in names]))
        return [call for call in calls if self.callee(call) in names]

    def beginning(self, nodes: Found, words: tuple[bytes, ...]) -> Iterator[Node]:
        """Yield the nodes whose text begins with one of the words."""
        begins = self.file.parsed.data.startswith
        return (nodes[index] for index, start in enumerate(nodes.starts) if begins(words, start))

    def calls_with(self, word: bytes) -> list[Node]:
        """Return the calls whose text contains the word."""
        find, calls = self.file.parsed.data.find, self.calls
        spans = enumerate(zip(calls.starts, calls.ends, strict=True))
        return [calls[index] for index, (start, end) in spans if find(word, start, end) >= 0]

    @once
    def doubles(self) -> list[Node]:
        """The literals in the body that may be doubles, in source order."""
        return doubles_in(self.body, self.file.parsed.data)

    def callee(self, call: Node) -> str:
        """Return the callee's name without template arguments."""
        cache = self.callees
        name = cache.get(call.id)
        if name is None:
            function = call.child_by_field_id(fields.FUNCTION)
            name = "" if function is None else self.source(function).split("<", 1)[0].strip()
            cache[call.id] = name
        return name

    @once
    def callees(self) -> dict[int, str]:
        """The cache of `callee`."""
        return {}

    def arguments(self, call: Node) -> list[Node]:
        arguments = call.child_by_field_id(fields.ARGUMENTS)
        return [] if arguments is None else [child for child in arguments.named_children if child.type != "comment"]

    def around(self, node: Node) -> Iterator[Node]:
        """Yield the ancestors of `node` within the body, innermost first."""
        depth = 0
        while (parent := self.parent(node)) is not None:
            yield parent
            node, depth = parent, depth + 1
            if depth == MAX_PARENTS_ASKED and not self.has_all_parents:
                self.parents.update(_all_parents(self.body))
                self.has_all_parents = True

    def branches_around(self, node: Node) -> Iterator[Node]:
        """Yield the branches, `?:` and loops around `node`, innermost first."""
        return self._nesting.around(node)

    @once
    def _nesting(self) -> Nesting:
        return Nesting(self.branches, self.conditionals, self.loops)

    def loop_around(self, node: Node) -> Node | None:
        return next(self._loop_nesting.around(node), None)

    @once
    def _loop_nesting(self) -> Nesting:
        return Nesting(self.loops)

    def meaning(self, node: Node) -> Meaning:
        """Return a key that is equal for expressions with equal meaning: their text, plus the variables they refer
        to where the function has several with one name."""
        text = self.source(node)
        return self.meaning_of(text, node.start_byte) if self.repeated else text

    def meaning_of(self, text: str, place: int) -> Meaning:
        """Return the `meaning` of a node with this text at this position."""
        if not self.repeated:
            return text
        unclear = self.unclear.get(text)
        if unclear is None:
            unclear = self.unclear[text] = tuple(names_in_text(text) & self.repeated)
        if not unclear:
            return text
        return (text, *(id(visible_at(place, self.variables[name])) for name in unclear))

    @once
    def unclear(self) -> dict[str, tuple[str, ...]]:
        """The ambiguous names of each text that `meaning` was called for. Several variables share an ambiguous name."""
        return {}

    @once
    def repeated(self) -> frozenset[str]:
        """The names that several variables share."""
        return frozenset([name for name, variables in self.variables.items() if len(variables) > 1])

    def variable(self, node: Node | None) -> Variable | None:
        """Return the variable that a name refers to at its position. None for other nodes and for names declared
        outside."""
        if node is None or node.type != "identifier":
            return None
        known = self.variables.get(self.source(node))
        return None if known is None else visible_at(node.start_byte, known)

    def named(self, name: str) -> list[Variable]:
        """Return every variable with this name, parameters first."""
        return self.variables.get(name, [])

    def all_variables(self) -> Iterator[Variable]:
        for variables in self.variables.values():
            yield from variables

    @once
    def launches(self) -> tuple[LaunchShape, ...]:
        """The launches of this kernel in the file, empty where the block of an earlier one is unknown."""
        shapes = self.file.launch_shapes.get(self.key, ())
        return shapes if shapes and shapes[-1].place == len(shapes) - 1 else ()

    def is_in_shared(self, variable: Variable) -> bool:
        """Return whether the variable lies in shared memory. A pointer that a device function is given says so by its
        name alone."""
        is_given = not self.is_kernel and variable.is_pointer and variable in self.parameters
        return variable.is_shared or (is_given and _SHARED_NAME.search(variable.name) is not None)

    def declared_in(self, node: Node) -> frozenset[str]:
        """Return the names of the variables declared within the node."""
        return _names_between(self._declared_at, node)

    def written_in(self, node: Node) -> frozenset[str]:
        """Return the names of the variables written within the node, declarations excluded."""
        return _names_between(self._written_at, node)

    @once
    def _declared_at(self) -> list[tuple[int, str]]:
        """The declaration of each variable, in source order. A loop needs one search instead of a walk over all
        variables."""
        return sorted((variable.declaration.start_byte, variable.name) for variable in self.all_variables())

    @once
    def _written_at(self) -> list[tuple[int, str]]:
        return sorted((write.start_byte, v.name) for v in self.all_variables() for write in v.writes)

    def conditions(self) -> Iterator[Node]:
        """Yield the conditions of `if`, loops, `?:`, `&&` and `||`."""
        for nodes in (self.branches, self.loops, self.conditionals):
            for node in nodes:
                condition = node.child_by_field_id(fields.CONDITION)
                if condition is not None:
                    yield condition
        yield from self.connections

    def binaries_within(self, node: Node) -> Iterator[Node]:
        """Yield the binary expressions in a value, outermost first."""
        waiting = [node]
        while waiting:
            each = waiting.pop(0)
            if each.type == "binary_expression":
                yield each
            waiting += [child for child in each.named_children if child.type.endswith("_expression")]

    def operator(self, node: Node) -> str:
        operator = node.child_by_field_id(fields.OPERATOR)
        return "" if operator is None else operator.type

    def constant(self, node: Node | None, depth: int = 0) -> int | None:
        """Return the value of a constant integer expression; None if the text does not determine it."""
        return self.file.constant(node, self, depth)


def read_function(definition: Definition, file: CudaFile) -> Function | None:
    """Return the function with its variables and nodes. None for a definition without a readable body."""
    declarator, body = definition.declarator, definition.body
    if declarator is None or body is None:
        return None
    return Function(file, definition, declarator, body)


def _read_variables(function: Function) -> dict[str, list[Variable]]:
    known: dict[str, list[Variable]] = {}
    for variable in function.parameters:
        known.setdefault(variable.name, []).append(variable)
    for declaration in function.declarations:
        for variable in variables_of(function.file.parsed, declaration, _block_of(function, declaration)):
            known.setdefault(variable.name, []).append(variable)
    for write, target in _writes(function):
        variables = known.get(function.source(target))
        written = None if variables is None else visible_at(target.start_byte, variables)
        if written is not None:
            written.writes.append(write)
    return known


def _block_of(function: Function, declaration: Node) -> Node:
    """Return the block in which the declared names are visible."""
    block = function.parent(declaration)
    if block is not None and block.type == "condition_clause":
        block = function.parent(block)
    return function.body if block is None else block


def _writes(function: Function) -> Iterator[tuple[Node, Node]]:
    """Yield each assignment or update of a name, with the name."""
    for writes, part in ((function.assignments, fields.LEFT), (function.updates, fields.ARGUMENT)):
        for write in writes:
            target = write.child_by_field_id(part)
            if target is not None and target.type == "identifier":
                yield write, target


def _all_parents(body: Node) -> dict[int, Node | None]:
    """Return the parent of each node in the body. A tree finds a parent from its root in time proportional to the
    depth. For deeply nested code one walk that records all parents is much faster."""
    found: dict[int, Node | None] = {}
    waiting = [body]
    while waiting:
        node = waiting.pop()
        for child in node.children:
            found[child.id] = node
            waiting.append(child)
    return found


def _names_between(places: list[tuple[int, str]], node: Node) -> frozenset[str]:
    first = bisect_left(places, (node.start_byte, ""))
    return frozenset(name for _, name in places[first : bisect_left(places, (node.end_byte, ""), lo=first)])
