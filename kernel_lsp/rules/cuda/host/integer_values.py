"""Evaluate the integer expressions of host code: sizes, and the axes of a grid or block."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function, read_function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.cuda.variables import type_bytes

MAX_CALLS = 4
"""Maximum functions that the sizes of a grid are followed through."""


def known_value(function: Function, node: Node | None, depth: int = 0) -> int | None:
    """Return the value of an integer expression. Variables that are set once and never passed on are resolved, and so
    are members, and functions of the file that return an expression."""
    if node is None or depth > MAX_DEPTH:
        return None
    value = function.given.get(function.source(node)) if function.given else None
    value = function.constant(node) if value is None else value
    if value is not None:
        return value
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return known_value(function, node.named_children[0], depth + 1)
    if node.type == "binary_expression":
        left = known_value(function, node.child_by_field_id(fields.LEFT), depth + 1)
        right = known_value(function, node.child_by_field_id(fields.RIGHT), depth + 1)
        return _applied(function.operator(node), left, right)
    if node.type == "field_expression":
        return _field_value(function, node, depth)
    if node.type in ("parameter_declaration", "type_identifier"):
        return _value_of_name(function, function.source(node), depth)
    if node.type == "sizeof_expression":
        return _bytes_of_array(function, node)
    if node.type == "call_expression":
        return _value_of_call(function, node, depth)
    value_node = definition(function, node) or member_value(function, node)
    return None if value_node is None else known_value(function, value_node, depth + 1)


def called(function: Function, call: Node) -> Function | None:
    """Return the function of the file that a call names, None where there are several."""
    name = re.split(r"::|\.|->", function.callee(call))[-1]
    known = function.file.functions_by_name.get(name, ())
    return read_function(known[0], function.file) if len(known) == 1 else None


Inner = tuple[Node, Function, Node, dict[str, Node]]
"""A call, the function that it calls, a call within that, and the arguments by the names of the parameters."""


def calls_by_others(function: Function, names: tuple[str, ...]) -> Iterator[Inner]:
    """Yield the calls of functions of the file that call one of the names."""
    known = function.file.functions_by_name
    for call in function.calls:
        if re.split(r"::|\.|->", function.callee(call))[-1] not in known:
            continue
        callee = called(function, call)
        if callee is None or callee.node.id == function.node.id or not any(name in callee.text for name in names):
            continue
        given = dict(zip([each.name for each in callee.parameters], function.arguments(call), strict=False))
        for inner in callee.calls_named(names):
            yield call, callee, inner, given


def returned(function: Function, call: Node) -> tuple[Function, Node, dict[str, Node]] | None:
    """Return what a function of the file that is one `return` returns: the function, the value, and the arguments by
    the names of its parameters."""
    callee = called(function, call) if call.type == "call_expression" else None
    statements = [] if callee is None else [each for each in callee.body.named_children if each.type != "comment"]
    if callee is None or len(statements) != 1 or statements[0].type != "return_statement":
        return None
    values = statements[0].named_children
    names = [each.name for each in callee.parameters]
    return (callee, values[0], dict(zip(names, function.arguments(call), strict=False))) if values else None


def member_value(function: Function, node: Node) -> Node | None:
    """Return the value of a member that is set once: by an assignment, in a list, or where it is declared."""
    file, name = function.file, function.source(node).rpartition(".")[2].rpartition("->")[2]
    owner = function.variable(node.child_by_field_id(fields.ARGUMENT)) if node.type == "field_expression" else None
    if node.type not in ("identifier", "field_expression") or function.named(function.source(node)):
        return None
    known = [members for members in file.members.values() if name in members]
    if owner is not None and owner.element in file.members:
        known = [file.members[owner.element]]
    if len(known) != 1 or name not in known[0]:
        return None
    default, place = known[0][name].value, list(known[0]).index(name)
    if default is not None:
        is_equal = file.parsed.between(known[0][name].name_node.end_byte, default.start_byte).strip() == "="
        return default if file.member_sets[name] == is_equal else None
    if file.member_sets[name] or owner is None or owner.is_pointer or owner.writes or owner.value is None:
        return None
    values = owner.value.named_children if owner.value.type == "initializer_list" else []
    is_listed = place < len(values) and all(each.type != "initializer_pair" for each in values)
    return values[place] if is_listed else None


def _bytes_of_array(function: Function, node: Node) -> int | None:
    """Return the value of ``sizeof(x)`` of an array, or of a structure."""
    name = re.fullmatch(r"sizeof\s*\(?\s*(\w+)(\[0\])?\s*\)?", function.source(node))
    if name is not None and name[1] in function.file.structure_bytes:
        return function.file.structure_bytes[name[1]]
    known = [] if name is None else function.named(name[1])
    n_bytes = type_bytes(known[0].element) if len(known) == 1 and known[0].is_array else None
    if n_bytes is None or name is None or known[0].is_pointer or not known[0].sizes:
        return None
    for size in known[0].sizes if name[2] is None else ():
        extent = known_value(function, size)
        if extent is None:
            return None
        n_bytes *= extent
    return n_bytes


def _value_of_call(function: Function, node: Node, depth: int) -> int | None:
    """Return the value of ``x.size()`` of a container that is made with a number, or of a conversion."""
    text, arguments = function.source(node), function.arguments(node)
    if len(arguments) == 1 and _CONVERSION.match(text):
        return known_value(function, arguments[0], depth + 1)
    if (found := returned(function, node)) is not None:
        callee, value, given = found
        depth += MAX_DEPTH // MAX_CALLS  # a function that calls itself twice doubles the work with each level
        numbers = {each: known_value(function, argument, depth + 1) for each, argument in given.items()}
        callee.given = {each: number for each, number in numbers.items() if number is not None}
        return known_value(callee, value, depth + 1)
    name = re.fullmatch(r"(\w+)\.size\(\)", text)
    known = [] if name is None else function.named(name[1])
    if len(known) != 1 or known[0].writes:
        return None
    if re.search(rf"\b{known[0].name}\.(?:resize|push_|assign|insert|emplace)", function.text):
        return None
    made, array = known[0].value, re.match(r"(?:std::)?array\s*<[^,<>]*,\s*(\w+)\s*>", known[0].type_text)
    if array is not None:
        return int(array[1]) if array[1].isdigit() else function.file.constants.get(array[1])
    if made is None or "vector" not in known[0].type_text:
        return None
    if made.type == "argument_list":
        return known_value(function, made.named_children[0], depth + 1) if made.named_children else None
    is_count = made.parent is not None and made.parent.type == "argument_list"
    return known_value(function, made, depth + 1) if is_count else None


_CONVERSION = re.compile(r"(?:static_cast\s*<[\w\s:]+>|size_t|int|unsigned|u?int(?:32|64)_t)\s*\(")


def _field_value(function: Function, node: Node, depth: int) -> int | None:
    """Return the value of ``block.x`` of a `dim3`."""
    owner, axis = node.child_by_field_id(fields.ARGUMENT), function.source(node).rpartition(".")[2]
    variable = function.variable(owner)
    if owner is None or variable is None or variable.element != "dim3" or axis not in ("x", "y", "z"):
        value = member_value(function, node)
        return None if value is None else known_value(function, value, depth + 1)
    scope, sizes = axes(function, owner)
    index = "xyz".index(axis)
    return known_value(scope, sizes[index], depth + 1) if index < len(sizes) else None


def _applied(operator: str, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    if operator in ("/", "%"):
        return None if right <= 0 or left < 0 else left // right if operator == "/" else left % right
    if operator == "<<":
        return left << right if 0 <= right < 64 else None
    return {"+": left + right, "-": left - right, "*": left * right}.get(operator)


def definition(function: Function, node: Node) -> Node | None:
    """Return the initial value of a local variable that is set once."""
    variable = function.variable(node)
    if variable is None or variable.writes or variable in function.parameters or variable.is_pointer:
        return None
    text = function.source(function.body)
    is_passed = f"&{variable.name}" in text.replace(" ", "") or re.search(rf">>\s*{variable.name}\b", text)
    return None if is_passed else variable.value


def expanded(function: Function, node: Node, depth: int = 0) -> str:
    """Return the text of an expression together with the initial values of its variables."""
    names = sorted(function.names_in(node)) if depth < 3 else []
    values = (variable.value for name in names for variable in function.named(name))
    calls = (returned(function, call) for call in function.calls.within(node)) if depth < 3 else ()
    results = (_with_arguments(function, *found) for found in calls if found is not None)
    texts = (expanded(function, value, depth + 1) for value in values if value)
    return " ".join([function.source(node), *texts, *results])


def said(function: Function, scope: Function, node: Node) -> str:
    """Return the expanded text of a size, with the arguments of the call that it was followed through."""
    if scope is function:
        return expanded(function, node)
    texts = {name: expanded(function, each) for name, each in scope.arguments_given.items()}
    return re.sub(r"\w+", lambda word: texts.get(word[0], word[0]), scope.source(node))


def _with_arguments(function: Function, callee: Function, value: Node, given: dict[str, Node]) -> str:
    texts = {name: function.source(each) for name, each in given.items()}
    return re.sub(r"\w+", lambda word: texts.get(word[0], word[0]), callee.source(value))


def _set_alone(function: Function, name: str, sizes: list[Node]) -> list[Node]:
    """Return the sizes of a `dim3` of which axes are set by themselves: ``grid.x = n``. None where one is set twice."""
    found: dict[int, Node] = {}
    for write in function.assignments:
        left, right = write.child_by_field_id(fields.LEFT), write.child_by_field_id(fields.RIGHT)
        text = "" if left is None else function.source(left)
        if not text.startswith(f"{name}.") or text[-1:] not in "xyz" or right is None:
            continue
        axis = "xyz".index(text[-1])
        if axis in found or function.operator(write) != "=":
            return []
        found[axis] = right
    for axis in sorted(found):
        if axis > len(sizes):
            return []
        sizes = [*sizes[:axis], found[axis], *sizes[axis + 1 :]]
    return sizes


def declared_sizes(function: Function, name: Node) -> list[Node]:
    """Return the sizes in ``dim3 block(X, Y);``, which the grammar parses as a function declaration without name
    lookup."""
    for declaration in function.declarations:
        declarator = declaration.child_by_field_id(fields.DECLARATOR)
        type_node = declaration.child_by_field_id(fields.TYPE)
        if declarator is None or declarator.type != "function_declarator" or type_node is None:
            continue
        declared, sizes = (declarator.child_by_field_id(f) for f in (fields.DECLARATOR, fields.PARAMETERS))
        is_it = declared is not None and function.source(declared) == function.source(name)
        if is_it and sizes is not None and function.source(type_node) == "dim3":
            return list(sizes.named_children)
    return []


def _value_of_name(function: Function, name: str, depth: int) -> int | None:
    known = function.named(name)
    if not known:
        return function.file.constants.get(name)
    is_set_once = len(known) == 1 and not known[0].writes and known[0].value is not None
    return known_value(function, known[0].value, depth + 1) if is_set_once else None


def axes(function: Function, node: Node, depth: int = 0) -> tuple[Function, list[Node]]:
    """Return the sizes in ``dim3(x, y)``, in a variable or member of that type, or the size alone, and the function in
    which they are written."""
    variable = function.variable(node)
    if variable is not None and variable.element == "dim3" and depth == 0 and not variable.writes:
        scope, sizes = axes(function, variable.value, depth + 1) if variable.value is not None else (function, [])
        return scope, _set_alone(function, variable.name, sizes)
    if variable is None and node.type == "identifier" and (declared := declared_sizes(function, node)):
        return function, declared
    if node.type == "call_expression" and function.callee(node) == "dim3":
        return function, function.arguments(node)
    if (found := returned(function, node)) is not None and depth <= MAX_CALLS:
        callee, value, given = found
        numbers = {name: known_value(function, each) for name, each in given.items()}
        callee.given = {name: number for name, number in numbers.items() if number is not None}
        callee.arguments_given = given
        is_dim = "dim3" in callee.head or function.callee(value) == "dim3"
        return axes(callee, value, depth + 1) if is_dim else (function, [node])
    member = member_value(function, node) if node.type == "field_expression" or variable is None else None
    if member is not None and member.type in ("initializer_list", "argument_list", "call_expression"):
        return axes(function, member, depth + 1)
    return function, list(node.named_children) if node.type in ("argument_list", "initializer_list") else [node]


def launch_parts(call: Node) -> list[Node]:
    """Return the numbers between ``<<<`` and ``>>>``."""
    syntax = next(child for child in call.named_children if child.type == "kernel_call_syntax")
    return [child for child in syntax.named_children if child.type != "comment"]
