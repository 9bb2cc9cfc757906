"""What autograd runs: what is kept of a forward, and the gradients by a kernel or by the reference again."""

from __future__ import annotations

from kernel_lsp.export.python.operation_text import OperationText
from kernel_lsp.export.python.operator_text import OperatorText
from kernel_lsp.export.python.python_text import (
    LINE_LENGTH,
    bracketed,
    indented,
    literal,
    returned,
    tuple_text,
    unpacked,
)


def autograd_functions(operator: OperatorText) -> list[list[str]]:
    """What is kept of a forward, and the gradients from it."""
    if not operator.is_differentiable:
        return []
    names = operator.forward.argument_names
    tensors = [argument.name for argument in operator.forward.arguments if argument.is_tensor]
    numbers = [argument.name for argument in operator.forward.arguments if not argument.is_tensor]
    setup = [*unpacked(names, "inputs", 1), *bracketed("ctx.save_for_backward(", tensors, ")", depth=1)]
    restore = unpacked(tensors, "ctx.saved_tensors", 1)
    if numbers:
        setup += literal("ctx.numbers = (", numbers, ")", depth=1)
        restore += unpacked(numbers, "ctx.numbers", 1)
    results = [operator.forward.rename(f"grad_{result.name}") for result in operator.forward.operation.results]
    declarations = ["ctx: Any", *(f"{name}: Tensor" for name in results)]
    return [
        [
            *bracketed(
                f"def _{operator.name}_setup(", ["ctx: Any", "inputs: tuple[Any, ...]", "output: Any"], ") -> None:"
            ),
            *indented(['"""What the gradients need of a forward."""', *setup]),
        ],
        [
            *bracketed(f"def _{operator.name}_gradients(", declarations, ") -> tuple[Tensor | None, ...]:"),
            *indented(['"""The gradient for each argument; None for those that need none."""', *restore]),
            *indented(_gradient_body(operator)),
        ],
    ]


# --- below: where gradients come from


def _gradient_body(operator: OperatorText) -> list[str]:
    if operator.backward is None:
        why = "# There is no backward kernel: run the reference again, under autograd."
        return [why, *_gradients_again(operator, depth=1)]
    missing = operator.arguments_without_gradient()
    why = "# A second derivative is asked for" + (", or a gradient that no kernel makes." if missing else ".")
    asks = "torch.is_grad_enabled()"
    if missing:
        asks += f" or any(ctx.needs_input_grad[index] for index in {tuple_text(list(map(str, missing)))})"
    return [
        f"if {asks}:",
        *indented([why, *_gradients_again(operator, depth=2)]),
        *_gradients_by_kernel(operator, operator.backward),
    ]


def _gradients_again(operator: OperatorText, depth: int) -> list[str]:
    gradients = tuple_text([operator.forward.rename(f"grad_{r.name}") for r in operator.differentiable_results])
    arguments = literal("arguments = (", operator.forward.argument_names, ")", depth)
    call = [f"{operator.name}_reference", "arguments", "ctx.needs_input_grad", gradients]
    return [*arguments, *bracketed("return _gradients(", call, ")", depth)]


def _gradients_by_kernel(operator: OperatorText, backward: OperationText) -> list[str]:
    results = [backward.rename(result.name) for result in backward.operation.results]
    called = f"{backward.qualified_name}("
    left = ", ".join(results)
    values = results
    if len(results) > 1 and len(left) + len(called) > LINE_LENGTH // 2:
        left, values = "found", [f"found[{index}]" for index in range(len(results))]
    by_name = dict(zip(results, values, strict=True))
    wanted = [by_name.get(f"grad_{argument.name}", "None") for argument in operator.task.arguments]
    returns = [f"return ({wanted[0]},)"] if len(wanted) == 1 else returned(wanted, depth=1)
    return [*bracketed(f"{left} = {called}", backward.argument_names, ")", depth=1), *returns]
