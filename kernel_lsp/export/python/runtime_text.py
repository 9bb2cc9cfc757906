"""The runtime module that operators share: one text for all, read from the worker, where its parts are tested too."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kernel_lsp.export.python.operator_imports import merged_imports
from kernel_lsp.export.python.python_text import INDENT, LINE_LENGTH, indented, string_literal
from kernel_lsp.toolchain.nvrtc.standard_headers import STANDARD_HEADERS

RUNTIME_VERSION = 3
"""Version of the interface that operator files use. A change that breaks older operator files increments it. Both
runtimes then coexist in one folder, each under its own name."""
RUNTIME_MODULE = f"_kernel_runtime_{RUNTIME_VERSION}"
USE_PARTS = ("operator_support.py", "operator_settings.py", "operator_module.py", "operator_use.py")
"""Parts that a package includes. Its launches are in C++."""
PARTS = (*USE_PARTS, "cuda_runtime.py", "operator_plan.py", "operator_launches.py", "sdpa.py")
"""Parts of the module, in their order in it."""
SECTION_MARK = "\n# --- "
"""Mark that ends the imports of a part."""
_WORKER = Path(__file__).parents[2] / "worker" / "shipped"
_DOCSTRING = '''\
"""Runtime {version} of kernel-lsp's operators, shared by every operator file in this folder.

It needs the standard library and torch, and nothing of kernel-lsp. `kernel-lsp` writes it beside the operators
and replaces it with newer text of the same version; operators for another version bring a file of their own.

What an operator file uses:

    {uses}
    ModuleUse                 how a module's method calls the operator, and the settings it was captured with
    Operator.calls            counts of kernel calls and, by reason, of fallback calls
"""
'''
_LAUNCH_USES = """\
LaunchPlan                contract, allocations and launches: the lines at the top of the `.cu` file
    captured_with             the sizes that code was captured for, from a launch plan
    CudaOperator              registration, launches, autograd, fallback; kernels compiled by NVRTC"""
_PACKAGE_USES = """\
Contract, sizes, holds    inputs that the kernels take; everything else is PyTorch's
    Operator                  the operator in place of PyTorch code, with its fallback"""


@cache
def runtime_text(parts: tuple[str, ...] = PARTS) -> str:
    """Return the module: documentation, imports, and each part below its imports, word for word."""
    lines = _merged_lines(parts)
    uses = _LAUNCH_USES if parts == PARTS else _PACKAGE_USES
    sections = [section for part in parts for section in ("", "", *_section(part).splitlines())]
    headers = ["", "", *_headers(STANDARD_HEADERS)] if parts == PARTS else []
    docstring = _DOCSTRING.format(version=RUNTIME_VERSION, uses=uses).splitlines()
    version = ["", f"VERSION = {RUNTIME_VERSION}"]
    return "\n".join([*docstring, "", *lines, *version, *sections, *headers, ""])


@cache
def runtime_names() -> frozenset[str]:
    """Return everything that the parts define or import at their top level."""
    return frozenset(name for part in PARTS for node in ast.parse(_part(part)).body for name in _defined(node))


def _merged_lines(parts: tuple[str, ...]) -> list[str]:
    """Merge the imports of the parts, without those of each other."""
    statements = [
        ast.unparse(node)
        for name in parts
        for node in ast.parse(_part(name)).body
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
    ]
    return merged_imports(statements)


def _section(name: str) -> str:
    """Return a part below its imports."""
    text = _part(name)
    return text[text.index(SECTION_MARK) + 1 :].rstrip("\n")


def _headers(headers: Mapping[str, str]) -> list[str]:
    """Print the headers that kernels may include and NVRTC lacks."""
    lines = [f"# {'--- Headers of C and C++ that NVRTC does not have '.ljust(104, '-')}", "", "HEADERS = {"]
    for name, header in headers.items():
        whole = f"{string_literal(name)}: {string_literal(header)},"
        pieces = [string_literal(line) for line in header.splitlines(keepends=True)]
        fits = len(INDENT + whole) <= LINE_LENGTH
        lines += indented([whole] if fits else [f"{string_literal(name)}: (", *indented(pieces), "),"])
    return [*lines, "}"]


@cache
def _part(name: str) -> str:
    return (_WORKER / name).read_text(encoding="utf-8")


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            return [name.id for name in names]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []
