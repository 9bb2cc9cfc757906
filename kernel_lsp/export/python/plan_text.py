"""Print what an operator file has of its launch plan: where it stands, and what it leaves open. The runtime reads the
contract, the allocations and the launches from the `.cu` file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kernel_lsp.core.expression import Constant, Name, Number, free_names
from kernel_lsp.core.plan import Launch, LaunchPlan, Operation
from kernel_lsp.export.python.operation_text import RUNTIME, OperationText
from kernel_lsp.export.python.python_text import call_of_lines, literal, string_literal
from kernel_lsp.plan.kernel_names import typed_name


def plan_constant(written: LaunchPlan, named: LaunchPlan, operations: Sequence[OperationText]) -> list[str]:
    """Print ``PLAN = _runtime.LaunchPlan(...)``. `written` is the plan in the `.cu` file, `named` has the task's
    names, and `operations` have the operator's, and the sizes that the task fixes."""
    forward, *backward = operations
    conditions = {"where": [*_fixed_numbers(forward), *_fixed_dims(named.forward, forward)]}
    if backward:
        conditions["backward_where"] = _fixed_dims(named.operations[1], backward[0])
    tables = {
        "renamed": _renamed(written, named, forward),
        "kernels": _by_kernel(operations, _kernel_name),
        "numbers": _by_kernel(operations, _numbers),
    }
    lines = ["__file__,", f"{forward.name},"]
    for name, texts in conditions.items():
        lines += literal(f"{name}=(", list(map(string_literal, texts)), "),", depth=1) if texts else []
    for name, table in tables.items():
        items = [f"{string_literal(key)}: {string_literal(value)}" for key, value in table.items()]
        lines += literal(f"{name}={{", items, "},", depth=1) if items else []
    return [_comment(operations), *call_of_lines(f"PLAN = {RUNTIME}.LaunchPlan(", lines, ")")]


def _comment(operations: Sequence[OperationText]) -> str:
    """Return the comment that states where the contract and the launches are, and their number."""
    forward, *backward = [len(operation.launches) for operation in operations]
    launches = f"{forward} launch{'es' * (forward != 1)}{''.join(f', {each} backward' for each in backward)}"
    return f"# Contract and launches: the plan at the top of {operations[0].name}.cu ({launches})."


def _fixed_numbers(text: OperationText) -> list[str]:
    """Return the conditions on numbers that the kernels have as constants."""
    fixed = {argument.name: argument.fixed for argument in text.arguments if argument.fixed is not None}
    return [_condition(name, value) for name, value in fixed.items()]


def _condition(name: str, value: Number) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} == {Constant(value)}"


def _fixed_dims(written: Operation, text: OperationText) -> list[str]:
    """Return the conditions on sizes that the task fixes and the plan leaves open."""
    return [text.python(each.expression) for each in text.operation.where[len(written.where) :]]


def _renamed(written: LaunchPlan, named: LaunchPlan, text: OperationText) -> dict[str, str]:
    """Return the names of the plan for which the operator has others."""
    pairs = (
        pair
        for before, after in zip(written.operations, named.operations, strict=True)
        for pair in zip(_names(before), _names(after), strict=True)
    )
    found = {before: text.rename(after) for before, after in pairs}
    return {before: after for before, after in found.items() if before != after}


def _names(operation: Operation) -> Iterator[str]:
    yield from (parameter.name for parameter in operation.parameters)
    for tensor in (*operation.results, *operation.tensors):
        yield tensor.name
        for dim in tensor.dims:
            yield from sorted(free_names(dim))


def _by_kernel(operations: Iterable[OperationText], of: Callable[[OperationText, Launch], str]) -> dict[str, str]:
    """Return what the runtime does not know by itself of the launches: by kernel where that is one text, else by
    operation and number of the step."""
    found = {
        (launch.kernel, f"{text.name} {number}"): of(text, launch)
        for text in operations
        for number, launch in enumerate(text.operation.steps, 1)
        if isinstance(launch, Launch)
    }
    by_kernel: dict[str, set[str]] = {}
    for (kernel, _), value in found.items():
        by_kernel.setdefault(kernel, set()).add(value)
    return {kernel if len(by_kernel[kernel]) == 1 else step: value for (kernel, step), value in found.items() if value}


def _kernel_name(text: OperationText, launch: Launch) -> str:
    """Return the C++ name of one of several overloads, or of a template without arguments; empty for others."""
    signature = text.signature(launch)
    is_bare = signature.template_parameters and not launch.template_arguments
    return typed_name(launch, signature, text.signatures) or (f"{launch.kernel}<>" if is_bare else "")


def _numbers(text: OperationText, launch: Launch) -> str:
    """Return the C++ types of a launch's numbers where one is not what the runtime takes it for; empty for others."""
    types = {argument.name: argument.annotation for argument in text.arguments if not argument.is_tensor}
    stated = zip(launch.arguments, text.number_types(launch), strict=True)
    numbers = [(argument, type_) for argument, type_ in stated if type_]
    assumed = [types.get(text.rename(a.id), "int") if isinstance(a, Name) else "int" for a, _ in numbers]
    needed = [type_ for _, type_ in numbers]
    return "" if needed == assumed else ", ".join(needed)
