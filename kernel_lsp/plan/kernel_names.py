"""Which kernel a launch means, and what it is called with its template arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.core.expression import Expression, ExpressionError, Number
from kernel_lsp.core.expression_value import evaluate
from kernel_lsp.core.plan import KernelSignature, Launch


def kernel_name(launch: Launch, values: Mapping[str, Number]) -> str:
    """The C++ name expression, e.g. ``rows<256, true, float>``, for these dims and scalars. Raises ExpressionError."""
    arguments = ", ".join(template_texts(launch, values))
    return f"{launch.kernel}<{arguments}>" if launch.template_arguments else launch.kernel


def template_texts(launch: Launch, values: Mapping[str, Number]) -> tuple[str, ...]:
    """The template arguments as C++ text. Raises ExpressionError for one that cannot be evaluated or is a float."""
    return tuple(_template_text(argument, values) for argument in launch.template_arguments)


def find_signature(launch: Launch, signatures: Sequence[KernelSignature]) -> KernelSignature | None:
    """The kernel that a launch names; among overloads the first that takes as many arguments."""
    name = launch.kernel.removeprefix("::")
    named = [signature for signature in signatures if signature.name == name]
    counted = (signature for signature in named if len(signature.parameters) == len(launch.arguments))
    return next(counted, named[0] if named else None)


def _template_text(argument: Expression | str, values: Mapping[str, Number]) -> str:
    if isinstance(argument, str):
        return argument
    value = evaluate(argument, values)
    if isinstance(value, float):
        raise ExpressionError(f"'{argument}' is {value}, and a template argument must be an integer")
    return str(value).lower() if isinstance(value, bool) else str(value)
