"""The operator file: one Python text that needs torch and the `.cu` beside it, and nothing of ours."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from kernel_lsp.export.python.autograd_text import autograd_functions
from kernel_lsp.export.python.call_text import cuda_function
from kernel_lsp.export.python.launch_text import bind_function, kernel_names
from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.operator_imports import imports
from kernel_lsp.export.python.operator_text import OperatorParts, OperatorText
from kernel_lsp.export.python.python_text import (
    LINE_LENGTH,
    bracketed,
    indented,
    literal,
    section,
    string_literal,
)
from kernel_lsp.export.python.runtime_text import runtime_sections


def operator_text(parts: OperatorParts) -> str:
    """The file without its marker line. Raises PlanError for a plan that does not fit its kernels."""
    operator = OperatorText(parts)
    body = [
        *section(operator.public_function()),
        *section(*operator.module_part()),
        *section(operator.reference()),
        *(line for text in operator.operations for line in section(*_operation_functions(operator, text))),
        *section(*autograd_functions(operator)),
        *section(_library_function(operator)),
        *section(_registration(operator)),
        *section(*(part.splitlines() for part in runtime_sections())),
    ]
    return "\n".join([*operator.docstring(), "", *imports("\n".join(body)), "", operator.public_names(), *body, ""])


# --- below: what only a file with kernels beside it has


def _operation_functions(operator: OperatorText, text: OperationText) -> list[list[str]]:
    """The functions of one operation, in the order in which they call each other."""
    *contract, by_pytorch = operator.contract_functions(text)
    return [*contract, bind_function(text), cuda_function(text), by_pytorch]


def _library_function(operator: OperatorText) -> list[str]:
    """Where the kernels come from."""
    names = [string_literal(name) for name in _all_kernel_names(operator)]
    has_headers = bool(operator.headers)
    return [
        "@functools.lru_cache(maxsize=1)",
        "def _kernels() -> KernelLibrary:",
        *indented(
            [
                f'"""The kernels of {operator.name}.cu, read when a GPU first needs them."""',
                *literal("names = (", names, ")"),
                f'path = Path(__file__).with_name("{operator.name}.cu")',
                *_headers(operator.headers),
                f'return KernelLibrary(path.read_text(encoding="utf-8"), str(path), names{", headers" * has_headers})',
            ]
        ),
    ]


def _headers(headers: Mapping[str, str]) -> list[str]:
    """The headers that the text includes and NVRTC does not have, for `KernelLibrary`."""
    if not headers:
        return []
    lines = ["headers = {"]
    for name, header in headers.items():
        whole = f"{string_literal(name)}: {string_literal(header)},"
        pieces = [string_literal(line) for line in header.splitlines(keepends=True)]
        fits = len(whole) <= LINE_LENGTH - len("        ")
        lines += indented([whole] if fits else [f"{string_literal(name)}: (", *indented(pieces), "),"])
    return [*lines, "}"]


def _all_kernel_names(operator: OperatorText) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in operator.operations for name in kernel_names(text)))


def _registration(operator: OperatorText) -> list[str]:
    """The operators, for the dispatcher."""
    lines = [f'_LIBRARY = torch.library.Library("{operator.forward.namespace}", "FRAGMENT")']
    for text in operator.operations:
        lines += _define(text.schema)
        name, cuda, by_pytorch = f'"{text.name}"', f"_{text.name}_cuda", f"_{text.name}_by_pytorch"
        fake = [f'"{text.namespace}::{text.name}"', f"_{text.name}_fake", "lib=_LIBRARY"]
        lines += bracketed("_LIBRARY.impl(", [name, cuda, '"CUDA"'], ")")
        lines += bracketed("_LIBRARY.impl(", [name, by_pytorch, '"CompositeExplicitAutograd"'], ")")
        lines += bracketed("torch.library.register_fake(", fake, ")")
    if operator.is_differentiable:
        lines += bracketed(
            "torch.library.register_autograd(",
            [
                f'"{operator.forward.namespace}::{operator.name}"',
                f"_{operator.name}_gradients",
                f"setup_context=_{operator.name}_setup",
                "lib=_LIBRARY",
            ],
            ")",
        )
    return lines


def _define(schema: str) -> list[str]:
    """The declaration of an operator, its schema over several lines where it is long."""
    tags = "tags=(torch.Tag.pt2_compliant_tag,)"
    if len(schema) < LINE_LENGTH - len('    "",'):
        return bracketed("_LIBRARY.define(", [string_literal(schema), tags], ")")
    pieces = textwrap.wrap(schema, LINE_LENGTH - len('     "",'), break_long_words=False)
    texts = [string_literal(f"{piece} ") for piece in pieces[:-1]]
    return ["_LIBRARY.define(", *indented([*texts, f"{string_literal(pieces[-1])},", f"{tags},"]), ")"]
