"""Detect kernels with their own host code, and restrict the imports and calls of Python ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.core.finding import Finding, Severity

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


# --- below: one node


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
