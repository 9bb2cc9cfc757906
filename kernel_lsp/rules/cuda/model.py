"""A function of a CUDA file, with what the rules ask about it: variables, and nodes by type."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tree_sitter import Node

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.by_text import next_mention, numbers_in, quotients_in
from kernel_lsp.rules.cuda.node_list import Found
from kernel_lsp.rules.cuda.nodes import LOOPS, BinariesWith, Nesting, NodesOf
from kernel_lsp.rules.cuda.outline import CudaFile, Definition, names_in_text
from kernel_lsp.rules.cuda.type_text import IDENTIFIER
from kernel_lsp.rules.cuda.variables import Variable, visible_at

MAX_PARENTS_ASKED = 64
"""Of one node, before the parents of all nodes are noted."""

Meaning = str | tuple
"""See `Function.meaning`."""


class Function:
    """A function definition. What only some rules ask for is read when one asks."""

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
        self.node, self.inside = definition.node, definition.inside
        self.name_node = declarator.child_by_field_id(fields.DECLARATOR) or declarator
        self.source: Callable[[Node], str] = file.source
        """The text of a node."""
        self.parent: Callable[[Node | None], Node | None] = self.inside.parent
        """The node around another, None for the body itself."""
        self.names_in: Callable[[Node | None], frozenset[str]] = file.names_in
        head = file.parsed.data[self.node.start_byte : body.start_byte]
        self.is_kernel, self.is_device = b"__global__" in head, b"__device__" in head
        self.name, self.text = file.source(self.name_node), file.source(self.node)
        self.caches: dict[str, dict] = {}
        self.growths: dict[Meaning, Any] = {}

    @once
    def is_template_of_types(self) -> bool:
        return _has_type_parameter(self.definition.outer)

    @once
    def parameters(self) -> list[Variable]:
        return [Variable(declarator, self.file.parsed) for declarator in self.inside.parameters]

    @once
    def variables(self) -> dict[str, list[Variable]]:
        """The parameters and local variables by their names, in the order of the text."""
        return _read_variables(self)

    @property
    def is_on_device(self) -> bool:
        return self.is_kernel or self.is_device

    @property
    def is_empty(self) -> bool:
        """Whether no name stands in the body."""
        return IDENTIFIER.search(self.source(self.body)) is None

    def mentions(self, name: str) -> Iterator[int]:
        """Where the name stands in the body, other than as a field."""
        word = name.encode()
        start = self._next_mention(word, self.body.start_byte)
        while start >= 0:
            yield start
            start = self._next_mention(word, start + len(word))

    def is_mentioned(self, name: str) -> bool:
        return self._next_mention(name.encode(), self.body.start_byte) >= 0

    def _next_mention(self, word: bytes, start: int) -> int:
        return next_mention(self.file.parsed.data, word, start, self.body.end_byte)

    @once
    def head(self) -> str:
        """The text in front of the body."""
        data = self.file.parsed.data[self.node.start_byte : self.body.start_byte]
        return data.decode("utf-8", errors="replace")

    def calls_named(self, names: Collection[str]) -> list[Node]:
        """The calls of any of the names. Most rules look for a few that most calls do not have."""
        calls = self.beginning(self.calls, tuple([name.encode() for name in names]))
        return [call for call in calls if self.callee(call) in names]

    def beginning(self, nodes: Found, words: tuple[bytes, ...]) -> Iterator[Node]:
        """Those of the nodes of which the text begins with one of the words."""
        begins = self.file.parsed.data.startswith
        return (nodes[index] for index, start in enumerate(nodes.starts) if begins(words, start))

    def calls_with(self, word: bytes) -> list[Node]:
        """The calls in whose text the word stands."""
        find, calls = self.file.parsed.data.find, self.calls
        spans = enumerate(zip(calls.starts, calls.ends, strict=True))
        return [calls[index] for index, (start, end) in spans if find(word, start, end) >= 0]

    @once
    def quotients(self) -> list[Node]:
        """The divisions and remainders, in the order of the text. Most functions are not asked."""
        return quotients_in(self.body, self.file.parsed.data)

    @once
    def divisions(self) -> list[Node]:
        return [node for node in self.quotients if self.operator(node) == "/"]

    @once
    def doubles(self) -> list[Node]:
        """The literals in the body that may be doubles, in the order of the text."""
        return numbers_in(self.body, self.file.doubles_at)

    def callee(self, call: Node) -> str:
        """The name that a call names, without template arguments."""
        cache = self.callees
        name = cache.get(call.id)
        if name is None:
            function = call.child_by_field_id(fields.FUNCTION)
            name = "" if function is None else self.source(function).split("<", 1)[0].strip()
            cache[call.id] = name
        return name

    @once
    def callees(self) -> dict[int, str]:
        """What is known of `callee`."""
        return {}

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
                self.inside.parents.update(self.inside.all_parents)

    def branches_around(self, node: Node) -> Iterator[Node]:
        """The branches, `?:` and loops around `node`, from the inside out."""
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
        """What is the same for expressions that say the same: their text, and which variables it is about if the
        function has several of a name."""
        text = self.source(node)
        return self.meaning_of(text, node.start_byte) if self.repeated else text

    def meaning_of(self, text: str, place: int) -> Meaning:
        """`meaning` of a node with this text that begins there."""
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
        """The names in a text of which there are several variables, as far as `meaning` was asked."""
        return {}

    @once
    def repeated(self) -> frozenset[str]:
        """The names of which there are several variables."""
        return frozenset([name for name, variables in self.variables.items() if len(variables) > 1])

    def variable(self, node: Node | None) -> Variable | None:
        """The variable that a name stands for where it is; None for other nodes and names from outside."""
        if node is None or node.type != "identifier":
            return None
        known = self.variables.get(self.source(node))
        return None if known is None else visible_at(node.start_byte, known)

    def named(self, name: str) -> list[Variable]:
        """Every variable with this name, parameters first."""
        return self.variables.get(name, [])

    def all_variables(self) -> Iterator[Variable]:
        for variables in self.variables.values():
            yield from variables

    @once
    def shared_names(self) -> tuple[bytes, ...]:
        """The names of the variables in shared memory."""
        return tuple([name.encode() for name, known in self.variables.items() if any(v.is_shared for v in known)])

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
        for nodes in (self.branches, self.loops, self.conditionals):
            for node in nodes:
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


def read_function(definition: Definition, file: CudaFile) -> Function | None:
    """The function with its variables and nodes, None for a definition without a readable body."""
    declarator, body = definition.declarator, definition.body
    if declarator is None or body is None:
        return None
    return Function(file, definition, declarator, body)


# --- below: one function


def _has_type_parameter(node: Node) -> bool:
    if node.type != "template_declaration":
        return False
    parameters = node.child_by_field_id(fields.PARAMETERS)
    kinds = () if parameters is None else tuple(child.type for child in parameters.named_children)
    return any("type_parameter" in kind for kind in kinds)


def _read_variables(function: Function) -> dict[str, list[Variable]]:
    known: dict[str, list[Variable]] = {}
    for variable in function.parameters:
        known.setdefault(variable.name, []).append(variable)
    parsed = function.file.parsed
    for declarator in function.inside.locals:
        variable = Variable(declarator, parsed)
        known.setdefault(variable.name, []).append(variable)
    for write, target in function.inside.writes:
        variables = known.get(function.source(target))
        written = None if variables is None else visible_at(target.start_byte, variables)
        if written is not None:
            written.writes.append(write)
    return known


def _names_between(places: list[tuple[int, str]], node: Node) -> frozenset[str]:
    first = bisect_left(places, (node.start_byte, ""))
    return frozenset(name for _, name in places[first : bisect_left(places, (node.end_byte, ""), lo=first)])
