"""Read the kernels of a CUDA source text with tree-sitter, without compiling. A text with syntax errors still yields
the kernels around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from kernel_lsp.core.plan import KernelParameter, KernelSignature, Span
from kernel_lsp.source.macros import MacroError
from kernel_lsp.source.preprocessor import preprocessed

N_REMEMBERED = 32
"""Texts whose signatures are remembered: a verdict reads each one five times, for the task and for its mutations."""


@dataclass(frozen=True)
class KernelLines:
    """Lines of one kernel, 1-based and inclusive, from its template or attributes to its closing brace."""

    name: str
    first_line: int
    last_line: int


@lru_cache(maxsize=N_REMEMBERED)
def kernel_signatures(text: str) -> tuple[KernelSignature, ...]:
    """Return every `__global__` function in the text, in order, omitting declarations of a defined kernel.

    Names include their namespaces (``ns::kernel``). In parameter types, simple aliases (``using vec = float4;``) and
    macros are expanded; of conditional alternatives, the compiled one counts. The span is that of the name, or the line
    of the macro that generates the function.
    """
    written = _written_signatures(text)
    return _made_signatures(text, written) if _MAY_MAKE.search(text) else written


def kernel_line_ranges(text: str) -> tuple[KernelLines, ...]:
    """Return the lines of every kernel with a body, in order."""
    return kernel_lines_in(parsed_source(text))


def kernel_lines_in(parsed: ParsedSource) -> tuple[KernelLines, ...]:
    """Return the lines of every kernel with a body, in order, from a parsed text."""
    source = _Source(parsed.data, parsed.root)
    ranges = []
    for kernel in _kernels(_walk(source)):
        if kernel.outer.type != "declaration":
            first, last = kernel.first.start_point[0] + 1, kernel.outer.end_point[0] + 1
            ranges.append(KernelLines(_qualified_name(kernel, source), first, last))
    return tuple(sorted(ranges, key=lambda lines: lines.first_line))


def host_function_lines(text: str) -> tuple[int, ...]:
    """Return the line of each function without `__device__`, `__global__`, `constexpr` or `= default`, which nvcc
    compiles for the host."""
    source = _Source.read(text)
    lines = []
    for visited in _walk(source):
        node = visited.node
        if node.type == "function_definition":
            head = source.text(node).split("{", 1)[0]
            if not re.search(r"\b(__device__|__global__|constexpr)\b|=\s*(default|delete)", head):
                lines.append(node.start_point[0] + 1)
    return tuple(lines)


def device_functions(text: str) -> tuple[tuple[int, int], ...]:
    """Return the first and last line of each function with a body that runs on the GPU."""
    source = _Source.read(text)
    functions = (visited.node for visited in _walk(source) if visited.node.type == "function_definition")
    on_device = (
        node for node in functions if re.search(r"\b__(?:device|global)__", source.text(node).split("{", 1)[0])
    )
    return tuple((node.start_point[0] + 1, node.end_point[0] + 1) for node in on_device)


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """The parsed bytes and their tree."""

    data: bytes
    root: Node


def parsed_source(text: str) -> ParsedSource:
    """Return the tree of a CUDA text, including erroneous parts. Attributes unknown to the grammar are blanked."""
    source = _Source.read(text)
    return ParsedSource(source.data, source.root)


_MAY_MAKE = re.compile(r"^[ \t]*#[ \t]*(?:define|if)", re.MULTILINE)
"""Marks macros and conditions, which may change a kernel's declaration."""


def _made_signatures(text: str, written: tuple[KernelSignature, ...]) -> tuple[KernelSignature, ...]:
    """Merge the signatures of the preprocessed text with those of the raw text whose names it lacks: a condition that
    the text alone cannot decide is left to the compiler."""
    try:
        made = _written_signatures(preprocessed(text))
    except MacroError:
        return written
    lines = text.split("\n")
    at_name = {(signature.name, signature.span.line): signature.span for signature in written}
    placed = [replace(s, span=at_name.get((s.name, s.span.line), _whole_line(lines, s.span.line))) for s in made]
    names = {signature.name for signature in made}
    return tuple(_in_order([*placed, *(signature for signature in written if signature.name not in names)]))


def _whole_line(lines: Sequence[str], number: int) -> Span:
    line = lines[number - 1].rstrip()
    return Span(number, len(line) - len(line.lstrip()) + 1, len(line) + 1)


def _in_order(signatures: Iterable[KernelSignature]) -> list[KernelSignature]:
    return sorted(signatures, key=lambda signature: (signature.span.line, signature.span.column))


def _written_signatures(text: str) -> tuple[KernelSignature, ...]:
    source = _Source.read(_without_kernel_bodies(text))
    visited = tuple(_walk(source))
    aliases = dict(_aliases(visited, source))
    found: dict[tuple[str, tuple[KernelParameter, ...]], KernelSignature] = {}
    for kernel in _kernels(visited):
        signature = _signature(kernel, source, aliases)
        found.setdefault((signature.name, tuple(_unnamed(p) for p in signature.parameters)), signature)
    return tuple(_in_order(found.values()))


_KERNEL_HEAD = re.compile(
    r"\b__global__\b[^;{}]{0,500}?\b[A-Za-z_]\w*\s*\((?=[^;{}]{0,4000}\)[^;{}()]{0,200}\{)[^;{}]{0,4000}\{"
)


def _without_kernel_bodies(text: str) -> str:
    """Blank the bodies of kernels: macros there, which no grammar can follow, must not hide signatures."""
    code, pieces, done = without_comments_and_strings(text), [], 0
    for match in _KERNEL_HEAD.finditer(code):
        if match.end() >= done:
            end = closing(code, match.end(), "{}")
            end = end if end < len(code) else match.end()
            pieces += [text[done : match.end()], _blanks(text[match.end() : end])]
            done = end
    return "".join([*pieces, text[done:]])


def without_comments_and_strings(text: str) -> str:
    return _NO_CODE.sub(lambda match: _blanks(match[0]), text)


def _blanks(text: str) -> str:
    """Return as many spaces on as many lines."""
    return "\n".join([" " * len(line) for line in text.split("\n")])


_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def closing(text: str, start: int, brackets: str = "()") -> int:
    """Return the position of the bracket that closes the one before `start`; the end of the text without one."""
    depth = 1
    for match in re.compile(f"[{re.escape(brackets)}]").finditer(text, start):
        depth += 1 if match[0] == brackets[0] else -1
        if depth == 0:
            return match.start()
    return len(text)


_UNKNOWN_ATTRIBUTES = re.compile(rb"\b__(?:cluster_dims|maxnreg|block_size)__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")
"""Attributes that the grammar reads as function calls; blanking them preserves every position."""
MAX_NAMESPACE_DEPTH = 64
_NOT_ENTERED = frozenset({"compound_statement", "parameter_list", "template_parameter_list", "string_literal"})


@dataclass(frozen=True, slots=True)
class _Source:
    """The parsed bytes and their tree."""

    data: bytes
    root: Node

    @classmethod
    def read(cls, text: str) -> _Source:
        data = text.encode("utf-8", errors="replace")
        data = _UNKNOWN_ATTRIBUTES.sub(lambda match: re.sub(rb"[^\n]", b" ", match.group()), data)
        return cls(data, _parser().parse(data).root_node)

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", errors="replace")

    def span(self, node: Node) -> Span:
        line_start = self.data.rfind(b"\n", 0, node.start_byte) + 1
        column = len(self.data[line_start : node.start_byte].decode("utf-8", errors="replace")) + 1
        return Span(node.start_point[0] + 1, column, column + len(self.text(node)))


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Nodes of a kernel. `outer` is its definition or declaration, `first` the start of its template or attributes."""

    outer: Node
    first: Node
    declarator: Node
    template_parameters: Node | None
    namespaces: tuple[str, ...]


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_cuda.language()))


class _Visited(NamedTuple):
    """A node outside function bodies, with its parent, because the tree's own `parent` searches from the root."""

    node: Node
    parent: Node | None
    namespaces: tuple[str, ...]


def _walk(source: _Source) -> Iterator[_Visited]:
    """Yield every node outside function bodies, in order. Uses a stack, since text can nest deeply."""
    stack = [_Visited(source.root, None, ())]
    while stack:
        visited = stack.pop()
        yield visited
        node, namespaces = visited.node, visited.namespaces
        kind = node.type
        if kind in _NOT_ENTERED or len(namespaces) > MAX_NAMESPACE_DEPTH:
            continue
        if kind == "function_definition" and not node.has_error:
            continue
        if kind == "namespace_definition":
            name = node.child_by_field_name("name")
            namespaces = (*namespaces, source.text(name)) if name is not None else namespaces
        stack.extend([_Visited(child, node, namespaces) for child in reversed(node.children)])


def _kernels(all_visited: Iterable[_Visited]) -> Iterator[_Kernel]:
    for visited in all_visited:
        node = visited.node
        if node.type in ("function_definition", "declaration") and any(c.type == "__global__" for c in node.children):
            declarator = next((c for c in node.children if c.type == "function_declarator"), None)
            if declarator is not None:
                yield _kernel(visited, declarator)


def _kernel(visited: _Visited, declarator: Node) -> _Kernel:
    node, parent = visited.node, visited.parent
    if parent is None or parent.type != "template_declaration":
        return _Kernel(node, node, declarator, None, visited.namespaces)
    return _Kernel(node, parent, declarator, parent.child_by_field_name("parameters"), visited.namespaces)


def _signature(kernel: _Kernel, source: _Source, aliases: dict[str, str]) -> KernelSignature:
    parameters = kernel.declarator.child_by_field_name("parameters")
    nodes = [] if parameters is None else [c for c in parameters.named_children if c.type in _PARAMETER_TYPES]
    read = tuple(_parameter(node, source, aliases) for node in nodes)
    template = [] if kernel.template_parameters is None else kernel.template_parameters.named_children
    template = [node for node in template if node.type != "comment"]
    name = kernel.declarator.child_by_field_name("declarator") or kernel.declarator
    return KernelSignature(
        name=_qualified_name(kernel, source),
        template_parameters=tuple(_template_parameter(node, source) for node in template),
        parameters=() if [(p.element, p.is_pointer) for p in read] == [("void", False)] else read,
        template_defaults=tuple(_template_default(node, source) for node in template if node.type in _WITH_DEFAULT),
        span=source.span(name),
    )


def _qualified_name(kernel: _Kernel, source: _Source) -> str:
    name = kernel.declarator.child_by_field_name("declarator") or kernel.declarator
    return "::".join((*kernel.namespaces, source.text(name)))


def _unnamed(parameter: KernelParameter) -> KernelParameter:
    return KernelParameter("", parameter.element, parameter.is_pointer, parameter.is_const)


_PARAMETER_TYPES = frozenset({"parameter_declaration", "optional_parameter_declaration"})
_WITH_DEFAULT = frozenset({"optional_parameter_declaration", "optional_type_parameter_declaration"})
_POINTER_TYPES = frozenset(
    {"pointer_declarator", "abstract_pointer_declarator", "array_declarator", "abstract_array_declarator"}
)
_QUALIFIERS = frozenset({"const", "volatile", "struct", "typename", "__restrict__", "__restrict", "__grid_constant__"})


def _parameter(node: Node, source: _Source, aliases: dict[str, str]) -> KernelParameter:
    type_node, declarator = node.child_by_field_name("type"), node.child_by_field_name("declarator")
    spelled = "" if type_node is None else source.text(type_node)
    depth, name = _declared(declarator, source)
    is_const = re.search(r"\bconst\b", spelled) is not None or any(
        child.type == "type_qualifier" and source.text(child) == "const" for child in node.children
    )
    meant = followed(_normalize(spelled), aliases)
    element, is_pointer_type = _normalize(meant), "*" in meant
    points_to_const = re.search(r"\bconst\b", meant.split("*")[0]) is not None
    is_const = points_to_const or (is_const and not is_pointer_type)
    if is_pointer_type:
        element, depth = element[:-1].strip(), depth + 1
    return KernelParameter(name, element + "*" * max(depth - 1, 0), depth > 0, is_const)


def _declared(declarator: Node | None, source: _Source) -> tuple[int, str]:
    """Return the number of pointers in the declarator, and the declared name (empty without one)."""
    depth = 0
    while declarator is not None and declarator.type != "identifier":
        depth += declarator.type in _POINTER_TYPES
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next((c for c in declarator.named_children if c.type in _DECLARATORS), None)
    return depth, "" if declarator is None else source.text(declarator)


_DECLARATORS = _POINTER_TYPES | {"identifier", "reference_declarator", "parenthesized_declarator"}


def _normalize(spelled: str) -> str:
    """Return the type without qualifiers, with its words separated by single spaces."""
    words = [word for word in re.findall(r"\w+|::|[^\s\w]", spelled) if word not in _QUALIFIERS]
    joined = ""
    for word in words:
        separate = joined and joined[-1].isalnum() | (joined[-1:] == "_") and (word[0].isalnum() or word[0] == "_")
        joined += f" {word}" if separate else word
    return joined


def _template_parameter(node: Node, source: _Source) -> str:
    """Return the parameter's name: ``BLOCK`` for ``int BLOCK = 256``, ``F`` for ``float (*F)(float)``, ``Ns...`` for a
    pack."""
    head = source.text(node).split("=", 1)[0]
    names = _FUNCTION_NAME.findall(head) or re.findall(r"[A-Za-z_]\w*", head)
    name = names[-1] if names else head.strip()
    return f"{name}..." if "..." in head else name


_FUNCTION_NAME = re.compile(r"\(\s*[*&]\s*(\w+)\s*\)")


def _template_default(node: Node, source: _Source) -> str:
    """Return the parameter's default: ``256`` for ``int BLOCK = 256``."""
    return " ".join(source.text(node).partition("=")[2].split())


def _aliases(all_visited: Iterable[_Visited], source: _Source) -> Iterator[tuple[str, str]]:
    """Return type aliases outside functions, without templates."""
    for node, parent, _ in all_visited:
        is_template = parent is not None and parent.type == "template_declaration"
        if node.type in ("alias_declaration", "type_definition") and not is_template:
            alias = alias_of(source.text(node))
            if alias is not None:
                yield alias


MAX_STEPS = 16
"""Maximum chain length of aliases of aliases."""
_USING = re.compile(r"using\s+(?P<name>\w+)\s*=\s*(?P<type>[^;]+?)\s*;?")
_TYPEDEF = re.compile(r"typedef\s+(?P<type>[^;()\[\]{}]+?)\s*\b(?P<name>\w+)\s*;?")


def alias_of(declaration: str) -> tuple[str, str] | None:
    """Return the name and its type as spelled; None for an array, a function, or no alias."""
    match = _USING.fullmatch(declaration) or _TYPEDEF.fullmatch(declaration)
    return None if match is None else (match["name"], match["type"])


def followed(name: str, aliases: Mapping[str, str]) -> str:
    """Resolve a name through all aliases, as spelled: ``const float*`` for ``in_t``; any other name is returned
    unchanged. An alias from a namespace is found without the namespace, too."""
    for _ in range(MAX_STEPS):
        known = aliases.get(name, aliases.get(name.rpartition("::")[2], name) if "::" in name else name)
        if known == name:
            return name
        name = known
    return name
