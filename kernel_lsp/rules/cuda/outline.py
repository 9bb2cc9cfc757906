"""Outline a CUDA file: the code outside of function bodies, the parts of it that functions can see, and `__device__`
variables that outlive a launch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from tree_sitter import Node

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda import declarations, fields
from kernel_lsp.rules.cuda.definition import Definition
from kernel_lsp.rules.cuda.host.axes import AxisSize, axis_sizes, linear_sizes
from kernel_lsp.rules.cuda.host.launch_shapes import LaunchShape, launch_shapes
from kernel_lsp.rules.cuda.host.repeated_arguments import RepeatedArgument, repeated_arguments
from kernel_lsp.rules.cuda.kernel_texts import (
    DEVICE_TEXT,
    GRID_SIZE,
    bytes_used,
    checks_tail,
    grid_indices,
    identifiers_in,
    is_unchecked,
    macros_of,
    only_accumulates,
    unreset_totals,
    with_texts,
)
from kernel_lsp.rules.cuda.literals import applied, integer_literal
from kernel_lsp.rules.cuda.members import (
    Members,
    accessor_sides,
    constant_members,
    indexed_parameters,
    members_of,
    returned_values,
    sets_of,
    structure_arrays,
    structure_bytes,
    structure_of,
    unique_pointers,
)
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.cuda.variables import parameters_of, type_bytes
from kernel_lsp.rules.rule import words

if TYPE_CHECKING:
    from kernel_lsp.rules.cuda.model import Function
    from kernel_lsp.rules.cuda.nodes import Found

MAX_CONSTANT = 1 << 63
MAX_DEPTH = 60
"""Maximum nesting depth of an evaluated expression. Deeper ones have no known value."""
MAX_PLAN_CHARACTERS = 5000
"""Characters at the start of the file in which the conditions of a launch plan are searched."""
CONDITIONAL_COMPILATION = ("preproc_if", "preproc_el")
"""Prefixes of the node types for `#if` and `#else`."""
_NOT_ENTERED = words(
    """
    parameter_list template_parameter_list string_literal preproc_arg comment preproc_include
    preproc_function_def preproc_call expression_statement alias_declaration using_declaration
    """
)
_DEFINE_INTEGER = re.compile(r"\(?\s*((?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*)\s*\)?\s*(?://.*|/\*.*)?", re.DOTALL)
_IS_PLAN = re.compile(r"\s*//\s*(?:where|launch)\b").match


class CudaFile:
    """A parsed file as its functions see it. `constants` are its integer `#define`s, `constexpr`s and enumerators,
    `declared` the functions declared without a body."""

    def __init__(self, parsed: ParsedCuda) -> None:
        self.parsed = parsed
        self.definitions: list[Definition] = []
        self.member_declarations: list[Node] = []
        self.constants: dict[str, int] = {}
        self.declared: set[str] = set()

    @once
    def kernels(self) -> dict[str, dict[tuple[str, int], list[Definition]]]:
        """The kernels of each name, by namespace and number of parameters. Several are variants of an `#if`, or of a
        template."""
        found: dict[str, dict[tuple[str, int], list[Definition]]] = {}
        for each in self.definitions:
            name = each.plain_name
            if name is not None and b"__global__" in self.parsed.data[each.node.start_byte : name.start_byte]:
                of_name = found.setdefault(self.source(name), {})
                of_name.setdefault((each.namespace, each.n_parameters), []).append(each)
        return found

    @once
    def kernels_by_key(self) -> dict[str, list[Definition]]:
        """The kernels by the key of their facts: their name, where it is the only kernel's."""
        known = ((name, signatures, each) for name, signatures in self.kernels.items() for each in signatures)
        return {_key(name, each, signatures): signatures[each] for name, signatures, each in known}

    def key_of(self, definition: Definition) -> str:
        """Return the key of a kernel's facts; an empty text for other functions."""
        name = "" if definition.plain_name is None else self.source(definition.plain_name)
        signature, signatures = (definition.namespace, definition.n_parameters), self.kernels.get(name, {})
        return _key(name, signature, signatures) if signature in signatures else ""

    def launched(self, name: str, n_arguments: int) -> str:
        """Return the key of the kernel that a launch is of, by the launch's qualified name; an empty text where
        several fit."""
        qualifier, _, name = name.rpartition("::")
        signatures = self.kernels.get(name, {})
        fitting = [each for each in signatures if each[1] == n_arguments]
        if len(fitting) > 1:
            fitting = [each for each in fitting if f"{each[0]}::".endswith(f"::{qualifier}::" if qualifier else "::")]
        if len(signatures) < 2:
            return name
        return _key(name, fitting[0], signatures) if len(fitting) == 1 else ""

    @once
    def repeated_arguments(self) -> dict[str, tuple[RepeatedArgument, ...]]:
        """The arguments that launches pass twice, by kernel."""
        return repeated_arguments(self.parsed.text, self.launched)

    @once
    def unchecked_kernels(self) -> frozenset[str]:
        """The kernels without any condition in which each thread of the grid handles one element. Their launches are
        checked against the allocated sizes."""
        bodies = self.kernel_texts.items()
        return frozenset(name for name, body in bodies if is_unchecked(with_texts(body, self.grid_indices)))

    @once
    def indexed_places(self) -> frozenset[tuple[str, int]]:
        """The parameters that unchecked kernels subscript with the thread's index: the kernel, and the position."""
        known = {key: self.kernels_by_key[key] for key in self.unchecked_kernels}
        return frozenset(indexed_parameters(self.parsed, known, self.grid_indices))

    @once
    def grid_indices(self) -> dict[str, str]:
        """The functions and macros without arguments that are the thread's index across the grid, with their text."""
        return grid_indices((*self.returned_values.items(), *self.macros.items()))

    @once
    def grid_loops(self) -> frozenset[str]:
        """The launched kernels that read the size of their grid, as a loop over it does."""
        return frozenset(name for name, body in self.kernel_texts.items() if GRID_SIZE.search(body))

    @once
    def kernel_texts(self) -> dict[str, str]:
        """The bodies of kernels that host code of the file may launch, by their key."""
        known = self.kernels_by_key.items() if b"<<<" in self.parsed.data else ()
        return {key: self.source(each.body)[1:-1] for key, variants in known for each in variants if each.body}

    @once
    def tail_checked_kernels(self) -> frozenset[str]:
        """The launched kernels in which each thread handles one element, and checks its index against a size."""
        return frozenset(name for name, body in self.kernel_texts.items() if checks_tail(body))

    @once
    def axis_sizes(self) -> tuple[AxisSize, ...]:
        """The sizes by which launched kernels bound their grids along x and y, in source order."""
        return tuple(axis_sizes(self.kernel_texts, self._parameters))

    @once
    def linear_sizes(self) -> tuple[tuple[str, int], ...]:
        """The sizes by which launched kernels bound their one index across the grid: kernel, and position of the
        parameter."""
        return tuple(linear_sizes(self.kernel_texts, self._parameters))

    @once
    def _parameters(self) -> dict[str, dict[str, int]]:
        """The positions of the parameters of launched kernels, by name."""
        found: dict[str, dict[str, int]] = {}
        for key in self.kernel_texts:
            last = self.kernels_by_key[key][-1]
            if last.declarator is not None and last.body is not None:
                names = (each.name for each in parameters_of(self.parsed, last.declarator, last.body))
                found[key] = {name: place for place, name in enumerate(names)}
        return found

    @once
    def kernels_of_shortened_sizes(self) -> frozenset[str]:
        """The kernels that a launch passes a difference such as ``n - 1``."""
        return frozenset(declarations.shortened(self.parsed.text))

    @once
    def unreset_totals(self) -> frozenset[str]:
        """The `__device__` variables that keep their values from launch to launch, as nothing in the file sets them."""
        return frozenset(unreset_totals(self.parsed.text)) if b"__device__" in self.parsed.data else frozenset()

    @once
    def dynamic_shared_bytes(self) -> frozenset[tuple[str, int]]:
        """The launched kernels with dynamic shared memory, and the bytes of its elements."""
        found = ((name, self.dynamic_shared(body)) for name, body in self.kernel_texts.items())
        return frozenset(
            (name, bytes_used(match, self.kernel_texts[name])) for name, match in found if match is not None
        )

    @once
    def _dynamic_arrays(self) -> list[re.Match[str]]:
        """The declarations of dynamic shared memory outside of functions."""
        return list(declarations.DYNAMIC_SHARED_OF_FILE.finditer(self.parsed.text))

    def dynamic_shared(self, body: str) -> re.Match[str] | None:
        """Return the declaration of dynamic shared memory in a kernel, or at the top of the file if it names it."""
        return declarations.dynamic_shared(body, self._dynamic_arrays)

    @once
    def device_symbols(self) -> frozenset[str]:
        """The names of `__constant__` and `__device__` variables, which host code cannot use as pointers."""
        if b"__constant__" not in self.parsed.data and b"__device__" not in self.parsed.data:
            return frozenset()
        return frozenset(declarations.SYMBOL.findall(self.parsed.text))

    @once
    def device_variables(self) -> frozenset[str]:
        """The names of `__device__` variables that are no arrays."""
        return frozenset(declarations.DEVICE_VARIABLE.findall(self.parsed.text) if self.device_symbols else ())

    @once
    def wide_constants(self) -> frozenset[str]:
        """The constants of the file that have 64 bits."""
        found = (match[1] or match[2] for match in declarations.WIDE_CONSTANT.finditer(self.parsed.text))
        return frozenset(found) & self.constants.keys()

    @once
    def bound_functions(self) -> frozenset[str]:
        """The functions that Python code calls as they are: bound by pybind11 or registered with torch."""
        if b"PYBIND11_MODULE" not in self.parsed.data and b"TORCH_LIBRARY" not in self.parsed.data:
            return frozenset()
        return frozenset(declarations.BOUND.findall(self.parsed.text))

    @once
    def host_functions(self) -> frozenset[str]:
        """The functions of a file with Python bindings that take tensors: defined or declared."""
        if b"PYBIND11_MODULE" not in self.parsed.data:
            return frozenset()
        return frozenset(declarations.TAKES_TENSOR.findall(self.parsed.text))

    @once
    def device_texts(self) -> dict[str, str]:
        """The bodies of `__device__` functions, by name."""
        return {match[1]: match[2] for match in DEVICE_TEXT.finditer(self.parsed.text)}

    @once
    def functions_by_name(self) -> dict[str, list[Definition]]:
        """The functions of the file with a body, by their names without namespace and class."""
        found: dict[str, list[Definition]] = {}
        for definition in self.definitions:
            declarator = definition.declarator
            name = None if declarator is None else declarator.child_by_field_id(fields.DECLARATOR)
            if name is not None and definition.body is not None:
                found.setdefault(self.source(name).rpartition("::")[2].strip(), []).append(definition)
        return found

    @once
    def accumulators(self) -> frozenset[tuple[str, int]]:
        """The arrays that kernels change by atomic sums alone: the kernel, and the position of the parameter."""
        found: set[tuple[str, int]] = set()
        data = self.parsed.data
        is_made = b"cudaMalloc" in data or b"::empty" in data
        if b"<<<" not in data or not is_made or b"atomic" not in data:
            return frozenset()
        for name, definitions in self.functions_by_name.items():
            for declarator, body in ((each.declarator, each.body) for each in definitions):
                if declarator is None or body is None or b"atomic" not in (body.text or b""):
                    continue
                text = self.source(body)
                parameters = list(parameters_of(self.parsed, declarator, body))
                found |= {(name, i) for i, each in enumerate(parameters) if only_accumulates(text, each.name)}
        return frozenset(found)

    @once
    def macros(self) -> dict[str, tuple[tuple[str, ...] | None, str]]:
        """The macros of the file: parameters, None for one without any, and text."""
        if b"#define" not in self.parsed.data and b"# define" not in self.parsed.data:
            return {}
        return macros_of(self.parsed.text)

    @once
    def shared_names(self) -> frozenset[str]:
        """The shared arrays that are declared outside of functions."""
        if b"__shared__" not in self.parsed.data:
            return frozenset()
        return frozenset(re.findall(r"^(?:extern\s+)?__shared__[^;{}]*?\b(\w+)\s*\[", self.parsed.text, re.MULTILINE))

    @once
    def members(self) -> Members:
        """The members of structures and classes."""
        return members_of(self.parsed, self.member_declarations)

    @once
    def member_sets(self) -> Counter[str]:
        """The number of places in the file that may set a member that is a size."""
        return sets_of(self.parsed.text, self.members)

    @once
    def structure_arrays(self) -> dict[tuple[str, str], declarations.Sized]:
        """The arrays that are members of structures: their elements and sizes, by structure and name."""
        return structure_arrays(self.parsed, self.members, self.constants)

    @once
    def structure_bytes(self) -> dict[str, int]:
        """The bytes of structures whose members are all of known types and sizes."""
        return structure_bytes(self.members, self.structure_arrays, self.constants)

    @once
    def constant_arrays(self) -> dict[str, declarations.Sized]:
        """The arrays in constant memory with the element and sizes of each."""
        return declarations.constant_arrays(self.parsed.text)

    @once
    def helper_texts(self) -> dict[str, bytes]:
        """The text of each macro and of the functions that a kernel may call, by name."""
        data = self.parsed.data
        found = {name: repr(macro).encode() for name, macro in self.macros.items()}
        for name, definitions in self.functions_by_name.items():
            texts = [data[each.outer.start_byte : each.outer.end_byte] for each in definitions]
            found[name] = b"".join(text for text in texts if b"__global__" not in text and b"<<<" not in text)
        for each in self.functions_by_name.get("operator()", ()):  # called by variables of the structure
            owner = structure_of(self.parsed, each.outer)
            found[owner] = found.get(owner, b"") + data[each.outer.start_byte : each.outer.end_byte]
        return {name: text for name, text in found.items() if text}

    def helpers_of(self, text: bytes) -> tuple[bytes, ...]:
        """Return the texts of the functions and macros that a text names, also by way of another one."""
        found = self._named_helpers(text)
        return tuple(found[name] for name in sorted(found))

    def helper_places(self, text: bytes) -> tuple[int | bytes, ...]:
        """Return the first lines and the texts of the helpers that a text names, to which findings may belong."""
        found = self._named_helpers(text)
        named = (self.functions_by_name.get(name, ()) for name in (*sorted(found), "operator()"))
        lines = (self.parsed.position(each.outer.start_byte)[0] for definitions in named for each in definitions)
        return (*lines, *(found[name] for name in sorted(found)))

    def _named_helpers(self, text: bytes) -> dict[str, bytes]:
        known, found = self.helper_texts, dict[str, bytes]()
        waiting = [text]
        while waiting:
            text = waiting.pop()
            new = {name: known[name] for name in identifiers_in(text) & known.keys() if name not in found}
            found |= new
            waiting += new.values()
        return found

    @once
    def launch_shapes(self) -> dict[str, tuple[LaunchShape, ...]]:
        """The template arguments and blocks of the launches in host code, by kernel."""
        if b"<<<" not in self.parsed.data:
            return {}
        return launch_shapes(self.parsed.text, self.constants, self.returned_values, self.launched)

    @once
    def returned_values(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """The parameters and the value of each function that is one `return`."""
        return returned_values(self.parsed, self.functions_by_name)

    @once
    def leaves_restrict_out(self) -> bool:
        """True for a program with launches that never says `__restrict__`."""
        return b"<<<" in self.parsed.data and b"restrict" not in self.parsed.data

    @once
    def waiting_functions(self) -> frozenset[str]:
        """The functions and macros of the file that wait for the GPU, also by another one."""
        if b"<<<" not in self.parsed.data or b"Synchronize" not in self.parsed.data:
            return frozenset()
        return frozenset(
            name for name in self.helper_texts if any(b"Synchronize" in text for text in self.helpers_of(name.encode()))
        )

    @once
    def member_pointers(self) -> frozenset[tuple[str, str]]:
        """The pointers that structures and classes declare, with their elements."""
        return unique_pointers(self.members)

    @once
    def member_integers(self) -> frozenset[str]:
        """The integers that structures and classes declare."""
        return frozenset(each.name for members in self.members.values() for each in members.values() if each.is_integer)

    @once
    def allocated_sides(self) -> frozenset[tuple[str, str]]:
        """The pointers that the file allocates, each ``device`` or ``host``: members of a class, too."""
        if b"cudaMalloc" not in self.parsed.data:
            return frozenset()
        return frozenset(declarations.allocated(self.parsed.text))

    @once
    def accessor_sides(self) -> frozenset[tuple[str, str, str]]:
        """The methods that return memory of their structure: name, structure, and ``device`` or ``host``."""
        return frozenset(accessor_sides(self.parsed, self.functions_by_name)) if self.allocated_sides else frozenset()

    @once
    def fits_its_launches(self) -> bool:
        """True if the launch plan rules out partial blocks: a `where:` line has a remainder such as
        ``N % 256 == 0``, or no launch divides, and so rounds, to compute its grid."""
        plan = [line.lstrip()[2:] for line in self.parsed.text[:MAX_PLAN_CHARACTERS].splitlines() if _IS_PLAN(line)]
        launches = [line for line in plan if "<<<" in line]
        is_exact = bool(launches) and not any("ceil_div" in line or "/" in line for line in launches)
        return is_exact or any("where:" in line and "%" in line for line in plan)

    @once
    def source(self) -> Callable[[Node], str]:
        """Return the text of a node."""
        text = self.parsed.ascii_text
        return self.parsed.source if text is None else lambda node: text[node.start_byte : node.end_byte]

    def texts(self, nodes: Found) -> list[str]:
        """Return the text of each node."""
        text, spans = self.parsed.ascii_text, zip(nodes.starts, nodes.ends, strict=True)
        if text is None:
            return [self.parsed.between(start, end) for start, end in spans]
        return [text[start:end] for start, end in spans]

    def names_in(self, node: Node | None) -> frozenset[str]:
        """Return every identifier in the node's text, including field names."""
        return frozenset() if node is None else names_in_text(self.source(node))

    def constant(self, node: Node | None, function: Function | None = None, depth: int = 0) -> int | None:
        """Return the value of a constant integer expression. None if the text does not determine it, or if it is out
        of range."""
        if node is None or depth > MAX_DEPTH:
            return None
        value = self._constant(node, function, depth)
        return value if value is not None and abs(value) < MAX_CONSTANT else None

    def _constant(self, node: Node, function: Function | None, depth: int) -> int | None:
        kind = node.type
        if kind == "number_literal":
            text = self.source(node)
            value = integer_literal(text.removeprefix("-"))
            return value if value is None or not text.startswith("-") else -value
        if kind in ("parenthesized_expression", "template_argument_list") and node.named_child_count == 1:
            return self.constant(node.named_children[0], function, depth + 1)
        if kind == "identifier":
            return self._named_constant(node, function, depth)
        if kind == "qualified_identifier":
            return self.constants.get(self.source(node).rpartition("::")[2])
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


def _key(name: str, signature: tuple[str, int], signatures: Collection[tuple[str, int]]) -> str:
    return name if len(signatures) < 2 else f"{signature[0]}::{name}({signature[1]})"


def read_outline(parsed: ParsedCuda) -> CudaFile:
    """Return the outline of the parsed file."""
    file = CudaFile(parsed)
    for item in _items(parsed.tree.root_node):
        if isinstance(item, Definition):
            file.definitions.append(item)
        elif item.type == "declaration":
            _read_outer_declaration(item, file)
        elif item.type == "field_declaration":
            file.member_declarations.append(item)
        else:
            _read_named_value(item, file)
    for node in file.member_declarations:
        for name, value in constant_members(parsed, node, file.constants, file.constant):
            _add_constant(file, name, value)
    return file


Item = Definition | Node
"""A function definition, or the node of a declaration, a `#define` or an enumerator."""


def _items(root: Node) -> Iterator[Item]:
    stack: list[tuple[Node, Node, bool, str]] = [(root, root, False, "")]
    while stack:
        node, parent, is_conditional, namespace = stack.pop()
        kind = node.type
        if kind == "function_definition":
            outer = parent if parent.type == "template_declaration" else node
            yield Definition(node, outer, is_conditional, namespace)
        elif kind in ("preproc_def", "enumerator", "declaration", "field_declaration"):
            yield node
            inner = node.child_by_field_id(fields.TYPE) if kind == "field_declaration" else None
            if inner is not None and inner.type in ("struct_specifier", "union_specifier", "class_specifier"):
                stack.append((inner, node, is_conditional, namespace))
        elif kind not in _NOT_ENTERED:
            inside = is_conditional or kind.startswith(CONDITIONAL_COMPILATION)
            name = node.child_by_field_id(fields.NAME) if kind == "namespace_definition" else None
            if name is not None and name.text is not None:
                namespace = f"{namespace}::{name.text.decode(errors='replace')}"
            stack.extend([(child, node, inside, namespace) for child in reversed(node.named_children)])


def _read_named_value(node: Node, file: CudaFile) -> None:
    """Record a `#define` of an integer, or an enumerator with a value."""
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
    """Record a constant. A name with two values (under `#if`) has no known value."""
    if name in file.constants and file.constants[name] != value:
        value = None
    if value is None:
        file.constants.pop(name, None)
    else:
        file.constants[name] = value
