"""What is wrong with an output, in words."""

from __future__ import annotations

from kernel_lsp.core.verdict import CaseResult, TensorError


def describe_error(error: TensorError, result: CaseResult) -> str:
    """A wrong output in words: where, how far, on which case."""
    shapes = ", ".join(f"{name}{list(shape)}" for name, shape in result.shapes.items())
    case = f"inputs '{result.family}', {shapes}"
    if error.found is None and error.n_wrong:
        return f"{error.n_wrong} of {error.n_elements} elements of '{error.output}' are never written ({case})"
    if error.worst_index is None:
        return (
            f"'{error.output}' is {error.relative_l2:.2e} from the fp64 reference (relative L2), "
            f"and {error.relative_l2_budget:.2e} is allowed ({case})"
        )
    return (
        f"{error.n_wrong} of {error.n_elements} elements of '{error.output}' are wrong: at {list(error.worst_index)} "
        f"{error.found:.6g} instead of {error.expected:.6g} ({case})"
    )
