"""The Python of a package: loads the compiled operator, and is what PyTorch asks where no kernel runs: shapes without
data, the fallback, gradients of gradients."""

from __future__ import annotations

from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.operator_imports import imports
from kernel_lsp.export.python.operator_text import OperatorText
from kernel_lsp.export.python.python_text import bracketed, indented, literal, section, string_literal
from kernel_lsp.export.python.runtime_text import SUPPORT, runtime_sections

PARTS = (SUPPORT,)
"""Of the runtime: the launches are in C++."""
ORIGIN = (
    "The kernels and their launch plan are in csrc/{name}.cu of the source distribution. They were compiled when this "
    "package was installed."
)
COMPILED_FILES = "_C*.so"


def package_module(operator: OperatorText) -> str:
    """``__init__.py`` of the package."""
    body = [
        *_PROVENANCE,
        *section(_public_function(operator)),
        *section(*operator.module_part()),
        *section(operator.reference()),
        *(line for text in operator.operations for line in section(*operator.contract_functions(text))),
        *(line for text in operator.operations for line in section(_by_pytorch(text))),
        *section(_gradients(operator) if operator.is_differentiable else []),
        *section(*_LOADING),
        *section(_registration(operator)),
        *section(*(part.splitlines() for part in runtime_sections(PARTS))),
    ]
    # The library is loaded before anything below needs its operators, and after all functions are defined.
    docstring = operator.docstring(ORIGIN, operator.forward.namespace)
    return "\n".join([*docstring, "", *imports("\n".join(body), PARTS), "", operator.public_names(), *body, ""])


# --- below: parts of the file

_PROVENANCE = [
    "",
    'PROVENANCE = json.loads(Path(__file__).with_name("provenance.json").read_text(encoding="utf-8"))',
    '"""Where this is from: task, verdict, hashes, dates."""',
]


def _public_function(operator: OperatorText) -> list[str]:
    call = f"return {operator.forward.qualified_name}.default("
    return operator.documented_function(bracketed(call, operator.forward.argument_names, ")", depth=1))


def _by_pytorch(text: OperationText) -> list[str]:
    """What the C++ calls where the kernels do not run."""
    declared = [argument.declaration for argument in text.arguments]
    return [
        *bracketed(f"def _{text.name}_instead(", ["why: str", *declared], f") -> {text.returns}:"),
        *indented(
            [
                '"""As the kernels would, by PyTorch; says why once."""',
                f'_say_once("{text.name}", why)',
                *bracketed(f"return _{text.name}_by_pytorch(", text.argument_names, ")", depth=1),
            ]
        ),
    ]


def _gradients(operator: OperatorText) -> list[str]:
    name, arguments = operator.name, operator.forward.arguments
    declared = ["needed: Sequence[int]", "gradients: Sequence[Tensor]", *(a.declaration for a in arguments)]
    call = [f"{name}_reference", "arguments", "list(map(bool, needed))", "gradients"]
    return [
        *bracketed(f"def _{name}_gradients(", declared, ") -> list[Tensor]:"),
        *indented(
            [
                '"""The gradients that are needed, in order, by PyTorch: the reference again, under autograd."""',
                *literal("arguments = (", [argument.name for argument in arguments], ")", depth=1),
                *bracketed("found = _gradients(", call, ")", depth=1),
                "return [gradient for gradient in found if gradient is not None]",
            ]
        ),
    ]


_LOADING = [
    f'''\
def _load() -> None:
    """Let PyTorch know the compiled operator."""
    files = sorted(Path(__file__).parent.glob("{COMPILED_FILES}"))
    if not files:
        how = "run `pip install --no-build-isolation .` in its source folder"
        raise ImportError(f"{{__name__}} was not compiled: {{how}}")
    torch.ops.load_library(str(files[0]))'''.splitlines()
]


def _registration(operator: OperatorText) -> list[str]:
    package = operator.forward.namespace
    lines = ["_load()", f'_LIBRARY = torch.library.Library("{package}", "FRAGMENT")']
    for text in operator.operations:
        schema = text.schema.replace("(", "_by_pytorch(str reason, ", 1)
        lines += bracketed("_LIBRARY.define(", [string_literal(schema)], ")")
        arguments = [f'"{text.name}_by_pytorch"', f"_{text.name}_instead", '"CompositeExplicitAutograd"']
        lines += bracketed("_LIBRARY.impl(", arguments, ")")
        fake = [f'"{package}::{text.name}"', f"_{text.name}_fake", "lib=_LIBRARY"]
        lines += bracketed("torch.library.register_fake(", fake, ")")
    if operator.is_differentiable:
        name = operator.name
        listed = operator.forward.schema.split("(", 1)[1].rsplit(" -> ", 1)[0]
        schema = f"{name}_gradients(int[] needed, Tensor[] gradients, {listed} -> Tensor[]"
        lines += bracketed("_LIBRARY.define(", [string_literal(schema)], ")")
        arguments = [f'"{name}_gradients"', f"_{name}_gradients", '"CompositeImplicitAutograd"']
        lines += bracketed("_LIBRARY.impl(", arguments, ")")
    return lines
