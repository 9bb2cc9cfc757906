"""Read what other functions use of a file: the members of structures, arguments of templates, values of functions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from tree_sitter import Node

from kernel_lsp.core.expression import ExpressionError, evaluate_int, parse
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declarations import Sized, allocated
from kernel_lsp.rules.cuda.definition import Definition
from kernel_lsp.rules.cuda.kernel_texts import indexed, with_texts
from kernel_lsp.rules.cuda.literals import integer_literal
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.cuda.variables import Variable, parameters_of, type_bytes, variables_of

Members = dict[str, dict[str, Variable]]
"""The members of each structure, by their names."""


@lru_cache(maxsize=4096)
def plain_name(text: str) -> str:
    """Return the name of a structure or function without template arguments and namespaces."""
    return (re.findall(r"\w+", re.sub(r"<.*>", "", text)) or [""])[-1]


def structure_of(parsed: ParsedCuda, member: Node) -> str:
    """Return the name of the structure or class that a member's declaration is in: its own, or that of a `typedef`."""
    owner = member.parent.parent if member.parent is not None else None
    name = None if owner is None else owner.child_by_field_id(fields.NAME)
    if name is None and owner is not None and owner.parent is not None and owner.parent.type == "type_definition":
        name = owner.parent.child_by_field_id(fields.DECLARATOR)
    return "" if name is None else parsed.source(name).partition("<")[0]


def members_of(parsed: ParsedCuda, declarations: Iterable[Node]) -> Members:
    """Return the members by structure. Functions are left out."""
    found: Members = {}
    for node in declarations:
        structure = found.setdefault(structure_of(parsed, node), {})
        structure.update({each.name: each for each in variables_of(parsed, node, node)})
    return found


def members_of_parameter(members: Members, parameter: Variable) -> dict[str, Variable]:
    """Return the members of the structure of the file that a parameter is, or points to."""
    words = re.findall(r"\w+", re.sub(r"<.*>", "", parameter.type_text)) if members else []
    return next((members[word] for word in words if word in members), {})


def structure_arrays(
    parsed: ParsedCuda, members: Members, constants: Mapping[str, int]
) -> dict[tuple[str, str], Sized]:
    """Return the arrays among the members. The parameters of templates are replaced by what they are given."""
    found: dict[tuple[str, str], Sized] = {}
    for structure, each in ((name, each) for name, inside in members.items() for each in inside.values()):
        if each.is_array:
            given = template_arguments(parsed, each.declaration, constants)
            texts = ("" if size is None else parsed.source(size) for size in each.sizes)
            sizes = tuple(_replaced(text, given) for text in texts)
            found[structure, each.name] = each.element, sizes
    return found


def _replaced(text: str, given: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda word: given.get(word[0], word[0]), text)


def structure_bytes(
    members: Members, arrays: Mapping[tuple[str, str], Sized], constants: Mapping[str, int]
) -> dict[str, int]:
    """Return the bytes of the structures whose members are all of known types and sizes."""
    found: dict[str, int] = {}
    for structure, inside in members.items():
        sizes = []
        for each in inside.values():
            n_bytes = 8 if each.is_pointer else type_bytes(each.element) or found.get(each.element, 0)
            extents = arrays[structure, each.name][1] if each.is_array else ()
            numbers = [integer_literal(extent) or constants.get(extent, 0) for extent in extents]
            sizes += [] if "static" in each.type_text else [n_bytes * math.prod(numbers)]
        if sizes and all(sizes):
            found[structure] = sum(sizes)
    return found


def template_arguments(parsed: ParsedCuda, member: Node, numbers: Mapping[str, int]) -> dict[str, str]:
    """Return the parameters of the templates around a member for which the whole file gives one number."""
    found: dict[str, str] = {}
    outer = member.parent
    while outer is not None:
        if outer.type == "template_declaration":
            owner = next((each for each in outer.named_children if each.type.endswith("_specifier")), None)
            name = None if owner is None else owner.child_by_field_id(fields.NAME)
            found |= {} if name is None else _given(parsed, outer, parsed.source(name), numbers)
        outer = outer.parent
    return found


def _given(parsed: ParsedCuda, template: Node, name: str, numbers: Mapping[str, int]) -> dict[str, str]:
    declared = template.child_by_field_id(fields.PARAMETERS)
    uses = [found[1].split(",") for found in re.finditer(rf"\b{name}\s*<([^<>;(){{}}]*)>", parsed.text)]
    found: dict[str, str] = {}
    for place, each in enumerate(() if declared is None else declared.named_children):
        text, _, default = parsed.source(each).partition("=")
        given = {(use[place].strip() if place < len(use) else "") or default.strip() for use in uses}
        value = given.pop() if len(given) == 1 else ""
        if value.isdigit() or value in numbers:
            found[re.findall(r"\w+", text)[-1]] = value
    return found


def sets_of(text: str, members: Members) -> Counter[str]:
    """Count how often a text may set each member that is a size: by assignments, lists of constructors, addresses."""
    inside = (each for every in members.values() for each in every.values())
    names = "|".join({each.name for each in inside if each.is_integer or each.element == "dim3"})
    if not names:
        return Counter()
    set_by = r"\s*(?:[-+*/|&]?=(?!=)|\+\+|--)"
    found = re.finditer(
        rf"\b({names})\b{set_by}|[:,]\s*({names})\s*[({{]|(?:&|>>\s*)(?:\w+(?:\.|->))?({names})\b", text
    )
    return Counter(each[1] or each[2] or each[3] for each in found)


_RETURN = re.compile(r"\{\s*return\b([^;{}]*);\s*\}")


def accessor_sides(parsed: ParsedCuda, functions: Mapping[str, list[Definition]]) -> Iterator[tuple[str, str, str]]:
    """Yield the methods that return a pointer which their structure allocates: their names, the structure, and the
    side of the memory, ``device`` or ``host``."""
    for name, definitions in functions.items():
        for definition in definitions:
            structure, body = structure_of(parsed, definition.outer), definition.body
            value = None if body is None or not structure else _RETURN.fullmatch(parsed.source(body))
            owner = definition.outer.parent
            if value is not None and owner is not None:
                member = value[1].strip().removeprefix("this->")
                sides = {side for known, side in allocated(parsed.source(owner)) if known == member}
                if len(sides) == 1:
                    yield name, structure, sides.pop()


def unique_pointers(members: Members) -> frozenset[tuple[str, str]]:
    """Return the pointers among the members with their elements. A name that two structures have is left out."""
    known = [each for inside in members.values() for each in inside.values()]
    n_known = Counter(each.name for each in known)
    return frozenset((each.name, each.element) for each in known if each.is_pointer and n_known[each.name] == 1)


def returned_values(
    parsed: ParsedCuda, functions: Mapping[str, list[Definition]]
) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return the parameters and the value of each function that is one `return`."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for name, definitions in functions.items():
        declarator, body = definitions[0].declarator, definitions[0].body
        if len(definitions) == 1 and declarator is not None and body is not None:
            value = _RETURN.fullmatch(parsed.source(body))
            if value is not None:
                found[name] = tuple([each.name for each in parameters_of(parsed, declarator, body)]), value[1]
    return found


def indexed_parameters(
    parsed: ParsedCuda, kernels: Mapping[str, list[Definition]], indices: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield the parameters that kernels subscript with the thread's index across the grid, by their positions."""
    for name, definitions in kernels.items():
        declarator, body = (definitions[0].declarator, definitions[0].body) if len(definitions) == 1 else (None, None)
        if declarator is not None and body is not None:
            names = [each.name for each in parameters_of(parsed, declarator, body)]
            yield from ((name, place) for place in indexed(with_texts(parsed.source(body), indices), names))


def constant_members(
    parsed: ParsedCuda, node: Node, constants: Mapping[str, int], constant: Callable[[Node | None], int | None]
) -> Iterator[tuple[str, int | None]]:
    """Yield ``static constexpr int kTile = 32;``, also of the number that the template of its structure is given."""
    text = parsed.source(node)
    if "constexpr" not in text and "static const" not in text:
        return
    given = template_arguments(parsed, node, constants)
    for member in variables_of(parsed, node, node):
        value = constant(member.value)
        if value is None and member.value is not None and given:
            value = _number(_replaced(parsed.source(member.value), given), constants)
        yield member.name, value


def _number(text: str, constants: Mapping[str, int]) -> int | None:
    """Return the value of an expression of integers and constants; None for any other."""
    try:
        return evaluate_int(parse(text), constants)
    except ExpressionError:
        return None
