"""The command `make_cases`: write inputs of one family, the fp64 reference and PyTorch's own result into files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import sympy
import torch

from ..capture.backward import GRADIENT
from ..capture.captured import WARM, Argument, Captured, bind_sizes
from ..failure import Failure, TargetFailure
from ..files import PLAN_NAMES, device_of, write_description, write_tensor
from ..host import threads_for
from ..oracle.case_filter import may_overflow_as_divisors, why_it_is_for_other_code, why_it_tells_nothing
from ..oracle.fp64_reference import result_dtypes
from ..oracle.results import Results, give_back_memory, results_of
from ..oracle.roundings import is_plain, rounding
from ..oracle.sampling import Sample, sample_of
from .case_values import GIVEN, Case, Values, are_captured, has_unlimited_integers
from .families import FAMILIES, has_no_place
from .integers import PLAIN

T = TypeVar("T")


def make_cases(request: dict[str, Any]) -> dict[str, Any]:
    """Make one case and write it below ``directory``. Raises Failure."""
    captured = WARM.find(int(request.get("configuration", 0)))
    if captured is None:
        raise Failure("make_cases needs a capture in the same worker first")
    family = request["family"]
    if family != GIVEN and family not in FAMILIES:
        raise Failure(f"there is no input family '{family}'; known: {GIVEN}, {', '.join(FAMILIES)}")
    if request["operation"] == "backward" and captured.backward is None:
        raise Failure("the task was captured without its backward")
    sizes, problem = bind_sizes(captured, request["shapes"])
    if problem:
        raise Failure(problem)
    reason = _cannot_make(captured, family, sizes, request["operation"] == "backward")
    if reason:
        return {"degenerate": True, "reason": reason}
    try:
        with threads_for(request["shapes"]):
            return _with_integers(captured, request, sizes, family)
    except Failure as failure:
        failed = failure.with_traceback(None)
        failed.__context__ = None  # errors refer to the tensors of the case
    give_back_memory(request.get("device"))
    raise failed


def _with_integers(
    captured: Captured, request: dict[str, Any], sizes: dict[sympy.Symbol, int], family: str
) -> dict[str, Any]:
    if has_unlimited_integers(captured, family):
        # On the CPU, where an index past the end is an error; on a GPU it would destroy the context.
        with contextlib.suppress(TargetFailure):
            answer = _made(captured, {**request, "device": None}, sizes, family)
            if not answer["degenerate"]:
                return answer
    return _made(captured, request, sizes, PLAIN)


def _made(
    captured: Captured, request: dict[str, Any], sizes: dict[sympy.Symbol, int], integers_of: str
) -> dict[str, Any]:
    """Return the answer, with the integers without a limit from the family `integers_of`."""
    family, seed, is_backward = request["family"], int(request["seed"]), request["operation"] == "backward"
    gpu, placed = request.get("device"), tuple(request.get("values", ()))
    draws_on = device_of(gpu) if request.get("may_describe") and not placed else None
    case = Values(captured, family, integers_of, seed, sizes, placed, draws_on).make()
    with ThreadPoolExecutor(1) as writer:
        # While a GPU computes the results from its own copies.
        early = writer.submit(_write_inputs, captured, request, case) if gpu is not None else None
        sample = _sample(captured, request, case, sizes)
        compared = case if sample is None else sample.of(case)
        results = results_of(captured, compared, family, seed, is_backward, gpu)
        if sample is not None and sample.is_of_outputs:
            sample = None if results.chosen else sample
            results = results if sample is None else results.sliced(sample)
        answer = _write(captured, request, case, results, is_backward)
        inputs = _write_inputs(captured, request, case) if early is None else early.result()
    del case, compared, results
    give_back_memory(gpu)
    inputs = [*answer["inputs"], *inputs]
    if sample is None:
        return {**answer, "inputs": inputs, "sample": None}
    described = {"ranges": sample.ranges, "dims": dict(zip(captured.output_names, sample.axis.outputs))}
    eager_bytes = answer["eager_bytes"] if sample.is_of_outputs else 0
    return {**answer, "inputs": inputs, "sample": described, "eager_bytes": eager_bytes}


def _sample(captured: Captured, request: dict[str, Any], case: Case, sizes: dict[sympy.Symbol, int]) -> Sample | None:
    """Return the slices to compare, where the request admits a sample; None where all of the case is compared."""
    from_bytes = request.get("sample_from_bytes")
    if from_bytes is None or request["operation"] == "backward":
        return None
    device = device_of(request.get("device"))
    return sample_of(captured, case, {**captured.captured_sizes, **sizes}, int(request["seed"]), device, from_bytes)


def _cannot_make(captured: Captured, family: str, sizes: dict[sympy.Symbol, int], is_backward: bool) -> str:
    """Explain why the family cannot be made at these sizes; empty when it can."""
    if has_no_place(family, [leaf.dtype for leaf in captured.inputs.tensors if leaf.state is None]):
        return "no other floating input is there to hold a special value"
    if may_overflow_as_divisors(captured, family):
        return "a reciprocal of such numbers is no number"
    if reason := why_it_is_for_other_code(captured, family, is_backward):
        return reason
    if family != GIVEN:
        return ""
    if captured.inputs.fresh is None:
        return "the target has no get_inputs()"
    return "" if are_captured(captured, sizes) else "get_inputs() makes the captured shapes only"


def _result_names(captured: Captured, is_backward: bool) -> list[str]:
    if not is_backward:
        return captured.output_names
    assert captured.backward_text is not None
    outputs = captured.backward_text.outputs
    return [output["name"] for output in outputs if output["node"] is not None]


def _write(
    captured: Captured,
    request: dict[str, Any],
    case: Case,
    results: Results,
    is_backward: bool,
) -> dict[str, Any]:
    """Write everything except the arguments, which follow the gradients among the inputs."""
    reason = why_it_tells_nothing(captured, request["family"], results.expected, results.native)
    folder = os.path.abspath(request["directory"])
    gradients: list[str] = []
    if is_backward:
        assert captured.backward is not None
        gradients = [f"{GRADIENT}{captured.output_names[p]}" for p in captured.backward.outputs]
    names, dtypes = _result_names(captured, is_backward), result_dtypes(captured, is_backward)
    return {
        "inputs": [
            write_tensor(os.path.join(folder, "inputs", f"{name}.bin"), name, tensor)
            for name, tensor in zip(gradients, case.gradients)
        ],
        "outputs": [_write_output(folder, *each, results, i) for i, each in enumerate(zip(names, dtypes))],
        "eager_bytes": results.eager_bytes,
        "degenerate": bool(reason),
        "reason": reason or results.note,
    }


def _write_output(folder: str, name: str, dtype: torch.dtype, results: Results, position: int) -> dict[str, Any]:
    """Write what is expected of one output: PyTorch's own result where its distance from the reference does not
    suffice, and a mask of elements for which any value is correct where there are some. Ties between equal elements are
    not among them: the reference has one choice of those."""

    def written(kind: str, tensor: torch.Tensor) -> dict[str, Any]:
        return write_tensor(os.path.join(folder, kind, f"{name}.bin"), name, tensor)

    expected, native = results.expected[position], results.native[position]
    undecided, chosen = _at(results.undecided, position), _at(results.chosen, position)
    if chosen is not None and undecided is not None:
        undecided = undecided & ~chosen.where.to(undecided.device)
    return {
        "name": name,
        "dtype": PLAN_NAMES[dtype],
        "reference": written("expected", _wide(expected)),
        "native": None if is_plain(expected, native) else written("native", _wide(native)),
        "unspecified": written("unspecified", undecided) if undecided is not None and bool(undecided.any()) else None,
        "chosen": None
        if chosen is None
        else {
            "values": written("chosen", chosen.values),
            "ties": written("ties", chosen.where),
            "dim": chosen.dim,
            "unit": chosen.unit,
            "least": chosen.least,
            "each_once": chosen.each_once,
        },
        "rounding": rounding(expected, native, _at(results.perturbed, position)),
        "may_lose_nans": bool(_at(results.may_lose_nans, position)),
    }


def _at(column: Sequence[T], position: int) -> T | None:
    """Return an element of what may be empty."""
    return column[position] if column else None


def _wide(result: torch.Tensor) -> torch.Tensor:
    """Convert to float64, which represents all dtypes exactly except 64-bit integers: those stay."""
    return result if result.dtype == torch.int64 else result.double()


def _write_inputs(captured: Captured, request: dict[str, Any], case: Case) -> list[dict[str, Any]]:
    folder = os.path.join(os.path.abspath(request["directory"]), "inputs")
    return [_write_input(captured, os.path.join(folder, f"{a.name}.bin"), a, case) for a in captured.arguments]


def _write_input(captured: Captured, path: str, argument: Argument, case: Case) -> dict[str, Any]:
    placeholder, value = argument.placeholder, _value(argument, case)
    seed = case.seeds.get(placeholder.index) if placeholder.role == "input" else None
    if seed is None:
        return captured.kept.write(path, argument.name, value)
    return write_description(path, argument.name, value, seed)


def _value(argument: Argument, case: Case) -> torch.Tensor:
    placeholder = argument.placeholder
    return case.inputs[placeholder.index] if placeholder.role == "input" else case.state[placeholder.node]
