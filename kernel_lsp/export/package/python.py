"""Print the Python of a package. It loads the compiled operator, and implements what runs without kernels: shape
inference, the fallback, higher-order gradients."""

from __future__ import annotations

from kernel_lsp.export.python.contract_text import contract_function
from kernel_lsp.export.python.operation_text import RUNTIME, OperationText
from kernel_lsp.export.python.operator_imports import imports
from kernel_lsp.export.python.operator_text import OperatorText
from kernel_lsp.export.python.python_text import bracketed, indented, literal, section, string_literal

ORIGIN = (
    "The kernels and their launch plan are in csrc/{name}.cu of the source distribution. They were compiled when this "
    "package was installed."
)
COMPILED_FILES = "_C*.so"


def package_module(operator: OperatorText) -> str:
    """Print ``__init__.py`` of the package."""
    operations = [section(contract_function(text), _by_pytorch(operator, text)) for text in operator.operations]
    body = [
        *_PROVENANCE,
        *section(_public_function(operator), operator.use_part(), operator.reference()),
        *(line for lines in operations for line in lines),
        *section(_gradients(operator) if operator.is_differentiable else []),
        *section(*_LOADING),
        *section(_registration(operator)),
        "calls = OPERATOR.calls",
    ]
    # The operator's object needs the library, and the library needs all functions: load it between them.
    head = [*imports("\n".join(body)), "", f"from . import _kernel_runtime as {RUNTIME}"]
    return "\n".join([*operator.docstring(ORIGIN), "", *head, "", operator.public_names(), *body, ""])


# --- parts of the file

_PROVENANCE = [
    "",
    'PROVENANCE = json.loads(Path(__file__).with_name("provenance.json").read_text(encoding="utf-8"))',
    '"""Where this is from: task, verdict, hashes, dates."""',
]


def _public_function(operator: OperatorText) -> list[str]:
    call = f"return {operator.forward.qualified_name}.default("
    return operator.documented_function(bracketed(call, operator.forward.argument_names, ")", depth=1))


def _by_pytorch(operator: OperatorText, text: OperationText) -> list[str]:
    """Print the functions that the C++ calls where the kernels do not run."""
    declared = [argument.declaration for argument in text.arguments]
    direction = "backward" if operator.backward is text else "forward"
    return [
        *bracketed(f"def _{text.name}_instead(", ["why: str", *declared], f") -> {text.returns}:"),
        *indented(
            [
                '"""Compute as the kernels would, by PyTorch; warn once of each reason."""',
                f"{RUNTIME}.fell_back(OPERATOR.key, why)",
                *bracketed(f"return OPERATOR.{direction}_by_pytorch(", text.argument_names, ")", depth=1),
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
                '"""Return the gradients that are needed, in order: the reference again, under autograd."""',
                *literal("arguments = (", [argument.name for argument in arguments], ")", depth=1),
                *bracketed(f"found = {RUNTIME}._gradients(", call, ")", depth=1),
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


def _operator(operator: OperatorText) -> list[str]:
    """Print the operator's object, which the functions above and the C++ call."""
    lines = [
        f"{string_literal(operator.name)},",
        "__name__,",
        f"{operator.forward.qualified_name}.default,",
        f"_{operator.name}_contract,",
        f"{operator.name}_reference,",
    ]
    if operator.backward is not None:
        lines += [f"backward_contract=_{operator.backward.name}_contract,"]
    return [f"OPERATOR = {RUNTIME}.Operator(", *indented([*lines, *operator.operator_arguments()]), ")"]


def _registration(operator: OperatorText) -> list[str]:
    package = operator.forward.namespace
    lines = ["_load()", *_operator(operator), f'_LIBRARY = torch.library.Library("{package}", "FRAGMENT")']
    for text in operator.operations:
        schema = text.schema.replace("(", "_by_pytorch(str reason, ", 1)
        lines += bracketed("_LIBRARY.define(", [string_literal(schema)], ")")
        arguments = [f'"{text.name}_by_pytorch"', f"_{text.name}_instead", '"CompositeExplicitAutograd"']
        lines += bracketed("_LIBRARY.impl(", arguments, ")")
        direction = "forward" if text is operator.forward else "backward"
        fake = [f'"{package}::{text.name}"', f"OPERATOR.fake_{direction}", "lib=_LIBRARY"]
        lines += bracketed("torch.library.register_fake(", fake, ")")
    if operator.is_differentiable:
        name = operator.name
        listed = operator.forward.schema.split("(", 1)[1].rsplit(" -> ", 1)[0]
        schema = f"{name}_gradients(int[] needed, Tensor[] gradients, {listed} -> Tensor[]"
        lines += bracketed("_LIBRARY.define(", [string_literal(schema)], ")")
        arguments = [f'"{name}_gradients"', f"_{name}_gradients", '"CompositeImplicitAutograd"']
        lines += bracketed("_LIBRARY.impl(", arguments, ")")
    return lines
