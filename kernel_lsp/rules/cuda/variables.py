"""The parameters and local variables of a function, as its text declares them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.cuda.type_text import TypeFacts, type_facts


class Variable:
    """A parameter or local variable. `type_text` has its qualifiers; `sizes` are the nodes of its array extents,
    `writes` the assignments and updates of the variable itself. `scope` are the bytes in which the name means this
    variable, if nothing inside declares it again."""

    __slots__ = (
        "declaration", "is_array", "is_pointer", "is_reference", "name", "name_node", "scope", "sizes", "type_text",
        "value", "writes",
    )  # fmt: skip

    def __init__(self, name: str, type_text: str, declaration: Node, name_node: Node, value: Node | None) -> None:
        self.name, self.type_text, self.declaration, self.name_node = name, type_text, declaration, name_node
        self.value = value
        self.is_pointer = self.is_reference = self.is_array = False
        self.sizes: tuple[Node | None, ...] = ()
        self.writes: list[Node] = []
        self.scope = (0, 0)

    @property
    def type_facts(self) -> TypeFacts:
        return type_facts(self.type_text)

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


def read_parameters(declarator: Node, body: Node, parsed: ParsedCuda) -> Iterator[Variable]:
    """The named parameters of a function; an array among them is a pointer."""
    parameters = declarator.child_by_field_id(fields.PARAMETERS)
    scope = (body.start_byte, body.end_byte)
    for node in () if parameters is None else parameters.named_children:
        if node.type in ("parameter_declaration", "optional_parameter_declaration"):
            inner = node.child_by_field_id(fields.DECLARATOR)
            variable = None if inner is None else _variable(node, inner, None, inner.start_byte, parsed)
            if variable is not None:
                variable.is_pointer = variable.is_pointer or variable.is_array
                variable.is_array = False
                variable.scope = scope
                yield variable


def read_declaration(node: Node, block: Node, parsed: ParsedCuda) -> Iterator[Variable]:
    """The variables of one declaration in `block`, where its names end."""
    declarators = node.children_by_field_id(fields.DECLARATOR)
    end_of_type = declarators[0].start_byte if declarators else node.start_byte
    for child in declarators:
        declarator = child
        if child.type == "init_declarator":
            value = child.child_by_field_id(fields.VALUE)
            declarator = child.child_by_field_id(fields.DECLARATOR) or child
        else:
            value = node.child_by_field_id(fields.VALUE)  # `if (int q = f())`
        if value is not None and value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
            value = value.named_children[0]
        variable = _variable(node, declarator, value, end_of_type, parsed)
        if variable is not None:
            variable.scope = (variable.name_node.start_byte, block.end_byte)
            yield variable


def visible_at(place: int, known: Sequence[Variable]) -> Variable | None:
    """The one of the variables of a name that it means at the byte `place`; they are in the order of the text, and the
    innermost begins last."""
    if len(known) == 1:
        start, end = known[0].scope
        return known[0] if start <= place < end else None
    for index in range(bisect_right(known, place, key=_scope_start) - 1, -1, -1):
        if place < known[index].scope[1]:
            return known[index]
    return None


# --- below: one declarator


def _scope_start(variable: Variable) -> int:
    return variable.scope[0]


def _variable(
    declaration: Node, declarator: Node, value: Node | None, end_of_type: int, parsed: ParsedCuda
) -> Variable | None:
    """The variable that a declarator declares, None for functions and text that is not one."""
    kinds: list[str] = []
    sizes: list[Node | None] = []
    node: Node | None = declarator
    kind = declarator.type
    for _ in range(MAX_DEPTH):
        if kind == "identifier" or node is None:
            break
        if kind == "function_declarator":
            return None
        kinds.append(kind)
        if kind == "array_declarator":
            sizes.append(node.child_by_field_id(fields.SIZE))
        node = node.child_by_field_id(fields.DECLARATOR) or next(
            (c for c in node.named_children if c.type.endswith("declarator") or c.type == "identifier"), None
        )
        kind = "" if node is None else node.type
    if node is None or kind != "identifier":
        return None
    type_text = parsed.between(declaration.start_byte, end_of_type).strip()
    variable = Variable(parsed.source(node), type_text, declaration, node, value)
    if kinds:
        variable.is_pointer, variable.is_array = "pointer_declarator" in kinds, "array_declarator" in kinds
        variable.is_reference = "reference_declarator" in kinds
        variable.sizes = tuple(reversed(sizes))
    return variable
