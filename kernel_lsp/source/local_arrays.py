"""Insert guard zones around the local arrays of a thread in a CUDA text.

A compiler places all arrays of a function in one block of memory, so an index past the end of one reaches another
unnoticed. With a guard on both sides, whose bytes are checked when it goes out of scope, an out-of-bounds store traps
and a load returns NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.source.cuda import parsed_source

GUARD_BYTES = 64
_GUARD = "KernelLspGuard"
_WORD = "0x7fc0beefu"
_PRELUDE = (
    f"struct {_GUARD} {{ volatile unsigned words[{GUARD_BYTES // 4}]; "
    f"__device__ {_GUARD}() {{ for (int i = 0; i < {GUARD_BYTES // 4}; ++i) words[i] = {_WORD}; }} "
    f"__device__ ~{_GUARD}() {{ for (int i = 0; i < {GUARD_BYTES // 4}; ++i) "
    f'if (words[i] != {_WORD}) asm volatile("trap;"); }} }};\n#line 1\n'
)
_ELSEWHERE = re.compile(
    r"\b(?:__shared__|__constant__|__device__|__managed__|static|extern|constexpr|typedef|struct|class|union|enum)\b|[{(]"
)
"""Precedes a declaration that is not a thread's local array, or that also declares its type."""
_ALIGNED = re.compile(r"\b(?:alignas|__align__)\s*\([^()]*\)")
_FUNCTIONS = ("function_definition", "lambda_expression")


def with_guards(text: str) -> str | None:
    """Return the text with guards around each array declared in a block, with unchanged lines; None without any."""
    source = parsed_source(text)
    changed, end, n_guards = [], 0, 0
    for node in _declarations(source.root):
        written = _guarded(node, source.data, n_guards)
        if written and node.start_byte >= end:
            changed.append(source.data[end : node.start_byte].decode() + written)
            end, n_guards = node.end_byte, n_guards + written.count(_GUARD)
    return _PRELUDE + "".join(changed) + source.data[end:].decode() if changed else None


def _declarations(root: Node) -> Iterator[Node]:
    """Yield the declarations in blocks, in order."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "declaration" and node.parent is not None and node.parent.type == "compound_statement":
            yield node
        pending += reversed(node.children)


def _guarded(node: Node, data: bytes, n_guards: int) -> str:
    """Return the declaration with a guard before and after each array; empty if it has none."""
    declarators = node.children_by_field_name("declarator")
    if not any(map(_is_array, declarators)) or _is_constant(node, data):
        return ""
    head = data[node.start_byte : declarators[0].start_byte].decode()
    if _ELSEWHERE.search(_ALIGNED.sub("", head)):
        return ""
    parts = [f"{_GUARD} kernel_lsp_guard_{n_guards};"]
    for nth, declarator in enumerate(declarators):
        start = declarators[nth - 1].end_byte if nth else node.start_byte
        between = data[start : declarator.start_byte].decode() if nth else head
        again = " ".join(head.split()) + between.replace(",", " ", 1) if nth else between
        parts.append(f"{again}{data[declarator.start_byte : declarator.end_byte].decode()};")
        parts.append(f"{_GUARD} kernel_lsp_guard_{n_guards + nth + 1};")
    rest = data[declarators[-1].end_byte : node.end_byte].decode()
    return " ".join(parts) + "\n" * rest.count("\n")


def _is_array(node: Node) -> bool:
    """Return True for an array declaration, including an array of pointers, but not for a pointer or reference to
    one."""
    inner: Node | None = node
    while inner is not None and inner.type in ("init_declarator", "pointer_declarator"):
        inner = inner.child_by_field_name("declarator")
    is_array = inner is not None and inner.type == "array_declarator"
    while inner is not None and inner.type == "array_declarator":
        inner = inner.child_by_field_name("declarator")
    return is_array and inner is not None and inner.type == "identifier"


def _is_constant(node: Node, data: bytes) -> bool:
    """Return True inside a function that may run at compile time, where no guard is possible."""
    around = node.parent
    while around is not None:
        if around.type in _FUNCTIONS:
            body = around.child_by_field_name("body")
            head = data[around.start_byte : body.start_byte if body else around.end_byte].decode()
            if re.search(r"\bconst(?:expr|eval)\b", head):
                return True
        around = around.parent
    return False
