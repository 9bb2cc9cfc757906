"""Read the parameters and local variables of a function from their declarations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.parsing import Part
from kernel_lsp.rules.cuda.type_text import TypeFacts, type_facts

FEW_VARIABLES = 8
"""Maximum variables of one name that are scanned linearly, which is then as fast as a binary search."""
MAX_DECLARATORS = 60
"""Maximum nested declarators, as in a pointer to an array of pointers. Deeper declarations are unknown."""


class Declarator:
    """The declaration of a parameter or local variable without its text, shared by all texts of one shape. Its type
    starts with the declaration and ends at `end_of_type`. `Variable` documents the other fields."""

    __slots__ = (
        "declaration", "end_of_type", "is_array", "is_pointer", "is_reference", "name_node", "scope", "sizes", "value",
    )  # fmt: skip

    def __init__(self, declaration: Node, name_node: Node, value: Node | None, end_of_type: int) -> None:
        self.declaration, self.name_node, self.value, self.end_of_type = declaration, name_node, value, end_of_type
        self.is_pointer = self.is_reference = self.is_array = False
        self.sizes: tuple[Node | None, ...] = ()
        self.scope = (0, 0)


class Variable:
    """A parameter or local variable. `type_text` includes its qualifiers; `sizes` are the nodes of its array
    extents; `writes` are the assignments and updates of the variable itself. `scope` is the byte range in which the
    name refers to this variable, unless an inner declaration shadows it."""

    __slots__ = (
        "declaration", "is_array", "is_pointer", "is_reference", "name", "name_node", "scope", "sizes", "type_text",
        "value", "writes",
    )  # fmt: skip

    def __init__(self, declarator: Declarator, parsed: Part) -> None:
        self.declaration, self.name_node, self.value = declarator.declaration, declarator.name_node, declarator.value
        self.is_pointer, self.is_array = declarator.is_pointer, declarator.is_array
        self.is_reference, self.sizes, self.scope = declarator.is_reference, declarator.sizes, declarator.scope
        self.name = parsed.source(self.name_node)
        self.type_text = parsed.between(self.declaration.start_byte, declarator.end_of_type).strip()
        self.writes: list[Node] = []

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
        """True for a 64-bit integer."""
        return self.is_integer and type_facts(self.type_text).is_wide


def parameters_of(function: Node, body: Node) -> Iterator[Declarator]:
    """Yield the named parameters of a function's declarator. An array parameter is a pointer."""
    parameters = function.child_by_field_id(fields.PARAMETERS)
    scope = (body.start_byte, body.end_byte)
    for node in () if parameters is None else parameters.named_children:
        if node.type in ("parameter_declaration", "optional_parameter_declaration"):
            inner = node.child_by_field_id(fields.DECLARATOR)
            declarator = None if inner is None else _declarator(node, inner, None, inner.start_byte)
            if declarator is not None:
                declarator.is_pointer = declarator.is_pointer or declarator.is_array
                declarator.is_array = False
                declarator.scope = scope
                yield declarator


def declarators_of(node: Node, block: Node) -> Iterator[Declarator]:
    """Yield the declarators of one declaration in `block`, which bounds the scope of its names."""
    children = node.children_by_field_id(fields.DECLARATOR)
    end_of_type = children[0].start_byte if children else node.start_byte
    for child in children:
        inner = child
        if child.type == "init_declarator":
            value = child.child_by_field_id(fields.VALUE)
            inner = child.child_by_field_id(fields.DECLARATOR) or child
        else:
            value = node.child_by_field_id(fields.VALUE)  # `if (int q = f())`
        if value is not None and value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
            value = value.named_children[0]
        declarator = _declarator(node, inner, value, end_of_type)
        if declarator is not None:
            declarator.scope = (declarator.name_node.start_byte, block.end_byte)
            yield declarator


def visible_at(place: int, known: Sequence[Variable]) -> Variable | None:
    """Return the variable that a name refers to at the byte `place`. Its variables are in source order, and the
    innermost begins last."""
    if len(known) == 1:
        start, end = known[0].scope
        return known[0] if start <= place < end else None
    n_before = len(known) if len(known) <= FEW_VARIABLES else bisect_right(known, place, key=_scope_start)
    for index in range(n_before - 1, -1, -1):
        start, end = known[index].scope
        if start <= place < end:
            return known[index]
    return None


# --- below: one declarator


def _scope_start(variable: Variable) -> int:
    return variable.scope[0]


def _declarator(declaration: Node, declarator: Node, value: Node | None, end_of_type: int) -> Declarator | None:
    """Return the declared variable, None for functions and for text that declares none."""
    kinds: list[str] = []
    sizes: list[Node | None] = []
    node: Node | None = declarator
    kind = declarator.type
    for _ in range(MAX_DECLARATORS):
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
    found = Declarator(declaration, node, value, end_of_type)
    if kinds:
        found.is_pointer, found.is_array = "pointer_declarator" in kinds, "array_declarator" in kinds
        found.is_reference = "reference_declarator" in kinds
        found.sizes = tuple(reversed(sizes))
    return found
