"""Find the pointers that calls of host code name, and the side of the memory that they point to."""

from __future__ import annotations

import re

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.host.owners import owner_of_call
from kernel_lsp.rules.cuda.members import plain_name
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.cuda.variables import Variable

_HOST_CONTAINER = re.compile(r"(?:const\s+)?(?:std\s*::\s*)?(?:vector|array|string)\b")
_HOST_ACCESSORS = ("data", "c_str", "begin")


def pointer_of(function: Function, node: Node | None, levels: int = 1, depth: int = 0) -> Variable | None:
    """Return the pointer to elements in ``x`` or ``*out``, and with two levels in ``(void**)&x`` or ``out``."""
    if node is None or depth > 4:
        return None
    if node.type in ("cast_expression", "parenthesized_expression"):
        inner = node.child_by_field_id(fields.VALUE) or (node.named_children[-1] if node.named_children else None)
        return pointer_of(function, inner, levels, depth + 1)
    if node.type == "pointer_expression":
        step = -1 if function.source(node).startswith("&") else 1
        return pointer_of(function, node.child_by_field_id(fields.ARGUMENT), levels + step, depth + 1)
    if node.type == "call_expression" and function.callee(node) == "reinterpret_cast":
        return pointer_of(function, next(iter(function.arguments(node)), None), levels, depth + 1)
    variable = function.variable(node)
    if variable is None:
        return _member_pointer(function, node) if levels == 1 else None
    if not variable.is_pointer or len(function.named(variable.name)) != 1:
        return None
    declared = function.source(variable.declaration).replace(" ", "")
    n_levels = 2 if f"**{variable.name}" in declared else 1
    return variable if n_levels == levels else None


def _member_pointer(function: Function, node: Node) -> Variable | None:
    """Return the pointer that is a member: of its owner's structure, or the only member of its name in the file."""
    name = re.split(r"\.|->", function.source(node))[-1].strip()
    if node.type not in ("identifier", "field_expression") or function.named(name):
        return None
    owner = function.variable(node.child_by_field_id(fields.ARGUMENT)) if node.type == "field_expression" else None
    structures = function.file.members
    inside = structures.get(plain_name(owner.element)) if owner is not None else None
    known = [members[name] for members in ([inside] if inside else structures.values()) if name in members]
    return known[0] if len(known) == 1 and known[0].is_pointer else None


def side_of(function: Function, node: Node) -> str:
    """Return the side that a pointer points to, ``host`` or ``device``; an empty text if it is unknown."""
    node = _base_of(function, node)
    text = function.source(node)
    if node.type == "pointer_expression" and text.startswith("*"):
        return _side_of_result(function, text)
    if (found := owner_of_call(function, node)) is not None:
        method, owner = found
        if method in _HOST_ACCESSORS and _HOST_CONTAINER.match(owner.type_text):
            return "host"
        known = {(method, plain_name(owner.type_text), side): side for side in ("device", "host")}
        return next((side for key, side in known.items() if key in function.file.accessor_sides), "")
    if node.type == "pointer_expression":
        return "" if re.search(r"\bd_|\bdev|thrust|\(", text) else "host"
    variable = pointer_of(function, node)
    if variable is None or not function.named(variable.name):
        root = function.variable(node)
        if root is None:
            return _side_of_member(function, text)
        return "host" if root.is_array else ""
    body = function.source(function.body)
    name = re.escape(variable.name)
    if re.search(rf"cudaMalloc(?:Async)?\s*\(\s*(?:\(\s*void\s*\*\*\s*\)\s*)?&\s*{name}\b", body):
        return "device"
    if re.search(rf"\b(?:cudaMallocManaged|cudaHostAlloc)\s*\([^;]*&\s*{name}\b", body):
        return ""
    if re.search(rf"\bcudaMallocHost\s*\(\s*(?:\(\s*void\s*\*\*\s*\)\s*)?&\s*{name}\b", body):
        return "host"
    is_made = variable.value is not None and re.search(r"\b(?:malloc|calloc|new)\b", function.source(variable.value))
    if is_made or re.search(rf"\b{name}\s*=\s*(?:\([^()]*\)\s*)?(?:malloc|calloc|new)\b", body):
        return "host"
    return _side_by_name(variable.name)


def _base_of(function: Function, node: Node) -> Node:
    """Return the pointer that a distance is added to: x of ``x + i``, ``&x[i]`` and ``(T*)x``; else the node."""
    for _ in range(MAX_DEPTH):
        inner = None
        if node.type == "binary_expression" and function.operator(node) in ("+", "-"):
            sides = [node.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT)]
            pointers = [each for each in sides if each is not None and _is_pointer(function, each)]
            inner = pointers[0] if len(pointers) == 1 else None
        elif node.type in ("parenthesized_expression", "cast_expression"):
            inner = node.child_by_field_id(fields.VALUE) or (node.named_children[-1] if node.named_children else None)
        elif node.type == "pointer_expression" and function.source(node).startswith("&"):
            element = node.child_by_field_id(fields.ARGUMENT)
            array = None if element is None else element.child_by_field_id(fields.ARGUMENT)
            is_element = element is not None and element.type == "subscript_expression"
            inner = array if is_element and array is not None and _is_pointer(function, array) else None
        if inner is None:
            return node
        node = inner
    return node


def _is_pointer(function: Function, node: Node) -> bool:
    variable = function.variable(_base_of(function, node))
    return variable is not None and variable.is_pointer


def _side_of_result(function: Function, text: str) -> str:
    """Return the side of ``*out``, a pointer that the caller gets: ``device`` where this function allocates it so."""
    name = re.escape(text.lstrip("* "))
    is_made = re.search(rf"cudaMalloc(?:Async)?\s*\(\s*(?:\(\s*void\s*\*\*\s*\)\s*)?{name}\b", function.text)
    return "device" if is_made else ""


def _side_of_member(function: Function, text: str) -> str:
    """Return the side of a member, or of a pointer outside of functions, as the file allocates it."""
    name = re.fullmatch(r"(?:\w+\s*(?:\.|->)\s*)*(\w+)", text)
    owners = [] if name is None else [each for each in function.file.members.values() if name[1] in each]
    if name is None or (name[0] != name[1] and len(owners) != 1):
        return ""  # another structure may have its member of this name on the other side
    sides = {side for known, side in function.file.allocated_sides if known == name[1]}
    return sides.pop() if len(sides) == 1 else "" if sides else _side_by_name(name[1])


def _side_by_name(name: str) -> str:
    found = _SIDE.match(name)
    return "" if found is None else "host" if found.lastgroup == "host" else "device"


_SIDE = re.compile(r"(?P<host>h_|host(?:_|$)|\w*_host_?$)|(?P<device>d_|(?:dev|device)(?:_|$)|\w*_(?:dev|device)_?$)")
"""Names that say on which side their memory is."""
