"""Read the parameters and local variables of a function from their declarations, and interpret the text of a type."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.rule import words

IDENTIFIER = re.compile(
    r"[A-Za-z_](?:(?<![\w.].)(?<!->.)\w*"
    r"|(?<=\.t)hread_(?:rank|index)\b|(?<=\.b)lock_rank\b|(?<=\.g)roup_index\b|(?<=\.m)eta_group_rank\b)"
)
"""Names in an expression, without its fields but with the methods of cooperative groups that return a thread's rank.
It begins with a letter, which makes the search fast, and then looks behind."""
_TYPE_BYTES = {
    **dict.fromkeys(("char", "signed char", "unsigned char", "bool", "int8_t", "uint8_t", "__nv_fp8_e4m3"), 1),
    **dict.fromkeys(("byte", "uchar", "uint8", "std::byte", "u8"), 1),
    **dict.fromkeys(("short", "unsigned short", "half", "__half", "__nv_bfloat16", "nv_bfloat16", "int16_t"), 2),
    **dict.fromkeys(("uint16_t", "at::Half", "at::BFloat16"), 2),
    **dict.fromkeys(("int", "unsigned", "unsigned int", "float", "int32_t", "uint32_t", "half2", "__half2"), 4),
    **dict.fromkeys(("__nv_bfloat162", "nv_bfloat162"), 4),
    **dict.fromkeys(("double", "long long", "unsigned long long", "int64_t", "uint64_t", "float2", "int2"), 8),
    **dict.fromkeys(("size_t", "long", "unsigned long", "uint2"), 8),
    **dict.fromkeys(("float3", "int3", "uint3"), 12),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 16),
}
"""Sizes of types on 64-bit Linux, in bytes."""
INTEGER_TYPES = words(
    """
    int unsigned long short size_t int64_t int32_t uint32_t uint64_t char int16_t uint16_t ptrdiff_t
    """
)
WIDE_INTEGERS = frozenset(("size_t", "int64_t", "uint64_t", "ptrdiff_t"))
_QUALIFIERS = words(
    """
    const volatile __shared__ __restrict__ __restrict restrict static extern constexpr register inline
    __constant__ __device__ alignas
    """
)


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """The facts in the text of a type. `element` is the type without qualifiers and storage class."""

    words: frozenset[str]
    element: str
    is_shared: bool
    is_const: bool
    is_integer: bool
    is_wide: bool


@lru_cache(maxsize=4096)
def type_facts(type_text: str) -> TypeFacts:
    """Return the facts of a type. Results are cached, because files repeat types."""
    all_words = frozenset(re.findall(r"\w+", type_text))
    return TypeFacts(
        words=frozenset(IDENTIFIER.findall(type_text)),
        element=" ".join(word for word in re.findall(r"[\w:]+", type_text) if word not in _QUALIFIERS),
        is_shared="__shared__" in type_text,
        is_const="const" in all_words or "constexpr" in all_words,
        is_integer=not all_words.isdisjoint(INTEGER_TYPES),
        is_wide="long" in all_words or not all_words.isdisjoint(WIDE_INTEGERS),
    )


def type_bytes(type_text: str) -> int | None:
    """Return the bytes of a builtin type, None for others."""
    return _TYPE_BYTES.get(" ".join(type_text.split()))


FEW_VARIABLES = 8
"""Maximum variables of one name that are scanned linearly, which is then as fast as a binary search."""
_NAMES = ("identifier", "field_identifier")
MAX_DECLARATORS = 60
"""Maximum nested declarators, as in a pointer to an array of pointers. Deeper declarations are unknown."""


class Variable:
    """A parameter or local variable. `type_text` includes its qualifiers; `sizes` are the nodes of its array
    extents; `writes` are the assignments and updates of the variable itself. `scope` is the byte range in which the
    name refers to this variable, unless an inner declaration shadows it."""

    __slots__ = (
        "declaration", "is_array", "is_pointer", "is_reference", "name", "name_node", "scope", "sizes", "type_text",
        "value", "writes",
    )  # fmt: skip

    def __init__(
        self, parsed: ParsedCuda, declaration: Node, name_node: Node, value: Node | None, end_of_type: int
    ) -> None:
        self.declaration, self.name_node, self.value = declaration, name_node, value
        self.is_pointer = self.is_reference = self.is_array = False
        self.sizes: tuple[Node | None, ...] = ()
        self.scope = (0, 0)
        self.name = parsed.source(name_node)
        self.type_text = parsed.between(declaration.start_byte, end_of_type).strip()
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


def parameters_of(parsed: ParsedCuda, function: Node, body: Node) -> Iterator[Variable]:
    """Yield the named parameters of a function's declarator. An array parameter is a pointer."""
    parameters = function.child_by_field_id(fields.PARAMETERS)
    scope = (body.start_byte, body.end_byte)
    for node in () if parameters is None else parameters.named_children:
        if node.type in ("parameter_declaration", "optional_parameter_declaration"):
            inner = node.child_by_field_id(fields.DECLARATOR)
            variable = None if inner is None else _variable(parsed, node, inner, None, inner.start_byte)
            if variable is not None:
                variable.is_pointer = variable.is_pointer or variable.is_array
                variable.is_array = False
                variable.scope = scope
                yield variable


def variables_of(parsed: ParsedCuda, node: Node, block: Node) -> Iterator[Variable]:
    """Yield the variables of one declaration in `block`, which bounds the scope of its names."""
    children = node.children_by_field_id(fields.DECLARATOR)
    end_of_type = children[0].start_byte if children else node.start_byte
    for child in children:
        inner = child
        if child.type == "init_declarator":
            value = child.child_by_field_id(fields.VALUE)
            inner = child.child_by_field_id(fields.DECLARATOR) or child
        elif node.type == "field_declaration":
            value = _default_of(child)
        else:
            value = node.child_by_field_id(fields.VALUE)  # `if (int q = f())`
        if value is not None and value.type in ("argument_list", "initializer_list") and value.named_child_count == 1:
            value = value.named_children[0]
        variable = _variable(parsed, node, inner, value, end_of_type)
        if variable is not None:
            variable.scope = (variable.name_node.start_byte, block.end_byte)
            yield variable


def _default_of(declarator: Node) -> Node | None:
    """Return the default value of a member."""
    value = declarator.next_named_sibling
    is_none = value is None or value.type in ("bitfield_clause", "comment", "field_identifier")
    return None if is_none or (value is not None and value.type.endswith("declarator")) else value


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


def _scope_start(variable: Variable) -> int:
    return variable.scope[0]


def _variable(
    parsed: ParsedCuda, declaration: Node, declarator: Node, value: Node | None, end_of_type: int
) -> Variable | None:
    """Return the declared variable, None for functions and for text that declares none."""
    kinds: list[str] = []
    sizes: list[Node | None] = []
    node: Node | None = declarator
    kind = declarator.type
    for _ in range(MAX_DECLARATORS):
        if kind in _NAMES or node is None:
            break
        if kind == "function_declarator":
            return None
        kinds.append(kind)
        if kind == "array_declarator":
            sizes.append(node.child_by_field_id(fields.SIZE))
        node = node.child_by_field_id(fields.DECLARATOR) or next(
            (c for c in node.named_children if c.type.endswith("declarator") or c.type in _NAMES), None
        )
        kind = "" if node is None else node.type
    if node is None or kind not in _NAMES:
        return None
    found = Variable(parsed, declaration, node, value, end_of_type)
    if kinds:
        found.is_pointer, found.is_array = "pointer_declarator" in kinds, "array_declarator" in kinds
        found.is_reference = "reference_declarator" in kinds
        found.sizes = tuple(reversed(sizes))
    return found
