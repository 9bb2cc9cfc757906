"""Detect kernels with their own host code, and split a torch extension's file into device code without PyTorch headers
and host code.

nvcc reads PyTorch's headers two or three times, which takes most of a minute. Split, the kernels compile in seconds,
and the host code uses a precompiled header. A file that cannot be split safely stays whole, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tree_sitter import Node

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.source.cuda import parsed_source

LAUNCH = "kernel_lsp_launch"
LAUNCH_HELPER = f"""\
#include <cuda_runtime.h>
#include <tuple>
#include <utility>
template <typename... Parameters, typename... Arguments>
void {LAUNCH}(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
              Arguments&&... arguments) {{
    std::tuple<Parameters...> values{{static_cast<Parameters>(arguments)...}};
    std::apply([&](auto&... each) {{
        void* addresses[] = {{const_cast<void*>(static_cast<const void*>(&each))..., nullptr}};
        cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, addresses, shared_bytes, stream);
    }}, values);
}}
"""
"""Replacement for `kernel<<<grid, block>>>(...)`, which converts arguments to the kernel's parameters, as a call
does."""
HOST_HEADERS = re.compile(r"[<\"](torch|ATen|c10|pybind11|Python\.h|iostream|vector|string|tuple)\b")
DEVICE_HEADERS = re.compile(r"[<\"](cub|mma|cooperative_groups|cuda/)")
WHOLE_ONLY = re.compile(r"[<\"]thrust/|__managed__|cudaMemcpy(To|From)Symbol|cudaGetSymbol|cudaFuncSetCacheConfig\s*<")
PYTORCH_NAMES = re.compile(r"\b(torch|at|c10|pybind11|py)::|\bnamespace (torch|at|c10|pybind11)\b")
SHARED_LINKAGE = re.compile(r"\b(static|inline|__forceinline__)\b\s*")


@dataclass(frozen=True)
class SplitExtension:
    """`templates` are the names of template kernels; the host code's object file determines their launched
    instances."""

    device: str
    host: str
    templates: tuple[str, ...]


@dataclass(frozen=True)
class NotSplit:
    """The file is compiled as a whole."""

    reason: str


@dataclass
class _Halves:
    device: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)
    templates: list[str] = field(default_factory=list)

    def both(self, text: str) -> None:
        self.device.append(text)
        self.host.append(text)


class _Whole(Exception):
    """Internal: the file stays whole, for the given reason."""


def split_extension(text: str) -> SplitExtension | NotSplit:
    """Split into the two halves. Lines keep their order but not their numbers, which `#line` directives restore."""
    if found := WHOLE_ONLY.search(text):
        return NotSplit(f"it uses {found[0].strip()}")
    if "<<<" not in text:
        return NotSplit("nothing is launched")
    source = parsed_source(text)
    halves = _Halves()
    try:
        for node in source.root.children:
            _place(node, source.data, halves)
    except _Whole as why:
        return NotSplit(str(why))
    return SplitExtension("\n".join(halves.device) + "\n", "\n".join(halves.host) + "\n", tuple(halves.templates))


def _place(node: Node, data: bytes, halves: _Halves) -> None:
    text = _text(node, data)
    line = f"#line {node.start_point[0] + 1}\n"
    if node.type == "comment" or not text.strip():
        return
    if node.type == "preproc_include":
        _place_include(text, halves)
    elif node.type in ("preproc_def", "preproc_function_def", "preproc_call"):
        halves.both(text)
    elif node.type == "namespace_definition":
        _place_namespace(node, data, halves)
    elif node.type in ("function_definition", "template_declaration", "declaration"):
        _place_definition(node, text, line, data, halves)
    elif node.type.startswith("preproc_if") and re.search(r"__global__|<<<", text):
        raise _Whole("kernels depend on a preprocessor condition")
    elif PYTORCH_NAMES.search(text) or node.type == "expression_statement" or "PYBIND11_MODULE" in text:
        halves.host.append(line + text)
    else:
        halves.both(line + text)


def _place_include(text: str, halves: _Halves) -> None:
    if HOST_HEADERS.search(text):
        halves.host.append(text)
    elif DEVICE_HEADERS.search(text):
        halves.device.append(text)
    else:
        halves.both(text)


def _place_namespace(node: Node, data: bytes, halves: _Halves) -> None:
    """Open the namespace in both halves. An anonymous one gets a name, since the other half refers to its kernels."""
    body = node.child_by_field_name("body")
    if body is None:
        raise _Whole("a namespace without a body")
    head = data[node.start_byte : body.start_byte].decode()
    if node.child_by_field_name("name") is None:
        head = head.replace("namespace", "inline namespace kernel_lsp_unnamed", 1)
    halves.both(head + "{")
    for child in body.named_children:
        _place(child, data, halves)
    halves.both("}")


def _place_definition(node: Node, text: str, line: str, data: bytes, halves: _Halves) -> None:
    head = text.split("{", 1)[0]
    if re.search(r"\b__global__\b", head):
        _place_kernel(node, text, line, data, halves)
    elif re.search(r"\b__device__\b", head):
        (halves.both if "__host__" in head else halves.device.append)(line + text)
    elif re.search(r"\b__constant__\b|\b__shared__\b", head):
        halves.device.append(line + text)
    elif node.type == "function_definition" or ("(" in head and node.type != "declaration"):
        if PYTORCH_NAMES.search(text) or "<<<" in text or "PYBIND11_MODULE" in text or "cuda" in text:
            halves.host.append(line + _rewritten(node, data))
        else:
            halves.both(line + text)
    elif PYTORCH_NAMES.search(text):
        halves.host.append(line + text)
    else:
        halves.both(line + text)


def _place_kernel(node: Node, text: str, line: str, data: bytes, halves: _Halves) -> None:
    """Define the kernel for the device, declare it for the host. Both need the same symbol, so neither is `static`."""
    body = next((inner for inner in _descendants(node) if inner.type == "compound_statement"), None)
    if body is None:
        halves.both(line + text)  # a declaration
        return
    if PYTORCH_NAMES.search(text):
        raise _Whole("a kernel uses PyTorch's types")
    head = SHARED_LINKAGE.sub("", data[node.start_byte : body.start_byte].decode())
    halves.device.append(line + head + data[body.start_byte : node.end_byte].decode())
    halves.host.append(re.sub(r"__launch_bounds__\s*\([^()]*(\([^()]*\)[^()]*)*\)", "", head).rstrip() + ";")
    if node.type == "template_declaration":
        after = re.sub(r"__launch_bounds__\s*\([^()]*\)", "", head.split("__global__", 1)[1])
        found = re.search(r"(\w+)\s*\(", after)
        if found is None:
            raise _Whole("a template kernel whose name cannot be read")
        halves.templates.append(found[1])


def _rewritten(node: Node, data: bytes) -> str:
    """Return the node's text with each launch replaced by a call."""
    edits = [edit for inner in _descendants(node) if (edit := _launch_edit(inner, data)) is not None]
    text, position = [], node.start_byte
    for start, end, replacement in sorted(edits):
        if start < position:
            raise _Whole("a launch inside a launch")
        text += [data[position:start].decode(), replacement]
        position = end
    text.append(data[position : node.end_byte].decode())
    whole = "".join(text)
    if "<<<" in whole:
        raise _Whole("a launch that could not be read")
    return whole


def _launch_edit(node: Node, data: bytes) -> tuple[int, int, str] | None:
    if node.type != "call_expression":
        return None
    configuration = next((child for child in node.children if child.type == "kernel_call_syntax"), None)
    function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if configuration is None or function is None or arguments is None:
        return None
    parts = [_text(child, data) for child in configuration.named_children if child.type != "comment"]
    if not 2 <= len(parts) <= 4:
        raise _Whole("a launch whose configuration could not be read")
    parts += ["0", "0"][len(parts) - 2 :]
    given = [_text(child, data) for child in arguments.named_children if child.type != "comment"]
    # A macro such as AT_DISPATCH splits at commas, so the call is parenthesized.
    call = ", ".join([_text(function, data), *(f"({part})" for part in parts), *given])
    return node.start_byte, node.end_byte, f"({LAUNCH}({call}))"


def _descendants(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.children))


def _text(node: Node, data: bytes) -> str:
    return data[node.start_byte : node.end_byte].decode("utf-8", errors="replace")


ForeignKind = Literal["torch extension", "ModelNew"]
EXTENSION = re.compile(r"\bPYBIND11_MODULE\s*\(|\bTORCH_EXTENSION_NAME\b")
MODEL_NEW = re.compile(r"^class\s+ModelNew\b", re.MULTILINE)
NEEDS_CUDA = re.compile(r"__global__|<<<|cuda|triton|\bCUDAExtension\b", re.IGNORECASE)
HAS_BACKWARD = re.compile(r"\bdef\s*\(\s*\"backward\"")
PLAN_MARK = re.compile(r"^\s*//\s*kernel-lsp:\s*\d", re.MULTILINE)
_ALLOWED = (
    "torch triton math cmath numbers typing typing_extensions functools itertools collections operator dataclasses "
    "enum abc warnings numpy __future__ textwrap string einops os sys contextlib copy random pathlib logging"
)
ALLOWED_IMPORTS = frozenset(_ALLOWED.split())
"""Modules allowed in a `ModelNew` file: those for computation. Processes, threads, sockets and foreign functions are
excluded."""
REFUSED_NAMES = frozenset(("eval", "exec", "compile", "__import__", "globals", "breakpoint", "input"))
REFUSED_ATTRIBUTES = {
    "os": frozenset(("system", "popen", "fork", "forkpty", "kill", "_exit", "abort", "remove", "unlink", "rename")),
    "sys": frozenset(("modules", "_getframe", "settrace", "setprofile", "exit", "meta_path", "path_hooks")),
    "torch": frozenset(("_C",)),
}
"""Forbidden attributes of allowed modules. `os.exec...` and `os.spawn...` are rejected, too."""
REFUSED_PATHS = (
    "torch.multiprocessing",
    "torch.distributed",
    "torch.cuda.CUDAGraph",
    "torch.cuda.graph",
    "torch.cuda.Stream",
    "torch.utils._python_dispatch",
    "torch.overrides",
)


@dataclass(frozen=True)
class ForeignSource:
    """A file with host code. `needs_cuda` means that it runs only on a GPU."""

    kind: ForeignKind
    needs_cuda: bool
    has_backward: bool


def foreign_source(file_name: str, text: str) -> ForeignSource | None:
    """Classify the text if its host code would run; None for a kernel with a launch plan, and for anything else."""
    if file_name.endswith(".py"):
        found: ForeignKind | None = "ModelNew" if MODEL_NEW.search(text) else None
    else:
        found = "torch extension" if EXTENSION.search(text) and not PLAN_MARK.search(text) else None
    if found is None:
        return None
    return ForeignSource(found, bool(NEEDS_CUDA.search(text)), bool(HAS_BACKWARD.search(text)))


def python_findings(text: str) -> tuple[Finding, ...]:
    """Report forbidden imports and calls in a `ModelNew` file, with lines. A determined author can evade this; the
    process's sandbox is the barrier."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return (_error("syntax", f"it is no Python: {error}", line),)
    return tuple(finding for node in ast.walk(tree) for finding in _findings(node))


def _findings(node: ast.AST) -> Iterator[Finding]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield from _import(alias.name, node.lineno)
        case ast.ImportFrom(module=module, names=names):
            yield from _import(module or "", node.lineno)
            for alias in names:
                yield from _path(f"{module}.{alias.name}", node.lineno)
        case ast.Call(func=ast.Name(id=name)) if name in REFUSED_NAMES:
            yield _error("call-refused", f"it calls `{name}`, which hides what it does", node.lineno)
        case ast.Attribute():
            yield from _path(ast.unparse(node), node.lineno)


def _import(module: str, line: int) -> Iterator[Finding]:
    root = module.split(".")[0]
    if root not in ALLOWED_IMPORTS:
        yield _error("import-refused", f"it imports `{root or '.'}`, which computing tensors does not need", line)
    yield from _path(module, line)


def _path(path: str, line: int) -> Iterator[Finding]:
    root, _, rest = path.partition(".")
    first = rest.split(".")[0]
    is_process = root == "os" and first.startswith(("exec", "spawn", "posix_spawn"))
    refused = first in REFUSED_ATTRIBUTES.get(root, frozenset()) or is_process
    if refused or path in REFUSED_PATHS:
        yield _error("name-refused", f"it uses `{path}`, which computing tensors does not need", line)


def _error(code: str, message: str, line: int | None) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, message=message, source="integrity", line=line)
