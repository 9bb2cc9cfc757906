"""The command `make_cases`: write inputs of one family, the fp64 reference and PyTorch's own result into files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import sympy
import torch

from ..capture.backward import GRADIENT
from ..capture.captured import WARM, Argument, Captured
from ..dtypes import PLAN_NAMES
from ..failure import Failure, TargetFailure
from ..files import write_tensor
from ..oracle.case_filter import may_overflow_as_divisors, why_it_is_for_other_code, why_it_tells_nothing
from ..oracle.fp64_reference import result_dtypes
from ..oracle.results import Results, give_back_memory, results_of
from ..oracle.roundings import is_plain, rounding
from ..oracle.sampling import Sample, sample_of
from ..oracle.selection_outputs import Chosen
from ..threads import threads_for
from .case_values import GIVEN, Case, Values, are_captured, has_unlimited_integers
from .families import FAMILIES
from .integers import PLAIN
from .special_values import has_no_place


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
    sizes = _bind(captured, request["shapes"])
    reason = _cannot_make(captured, family, sizes)
    if reason:
        return _nothing(reason)
    with threads_for(request["shapes"]):
        return _with_integers(captured, request, sizes, family)


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
    case = Values(captured, family, integers_of, seed, sizes, tuple(request.get("values", ()))).make()
    gpu = request.get("device")
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
    del results
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
    gpu = request.get("device")
    device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
    return sample_of(captured, case, {**captured.captured_sizes, **sizes}, int(request["seed"]), device, from_bytes)


# --- below: sizes


def _bind(captured: Captured, shapes: dict[str, list[int]]) -> dict[sympy.Symbol, int]:
    """Return the size of every symbol, from the shapes of the arguments. Raises Failure when they do not fit the
    capture."""
    sizes: dict[sympy.Symbol, int] = {}
    for argument in captured.arguments:
        fake = captured.program.fake_inputs[argument.position]
        wanted = shapes.get(argument.name)
        if wanted is None or len(wanted) != fake.dim():
            raise Failure(f"'{argument.name}' needs a shape of {fake.dim()} dims, not {wanted}")
        for declared, size in zip(fake.shape, wanted):
            expression = getattr(getattr(declared, "node", None), "expr", None)
            known = int(declared) if expression is None else sizes.setdefault(expression, size)
            if known != size:
                expected = captured.symbols.shape(fake.shape)
                raise Failure(f"'{argument.name}' has shape [{', '.join(expected)}], and {wanted} does not fit it")
    return sizes


def _cannot_make(captured: Captured, family: str, sizes: dict[sympy.Symbol, int]) -> str:
    """Explain why the family cannot be made at these sizes; empty when it can."""
    if has_no_place(family, [leaf.dtype for leaf in captured.inputs.tensors if leaf.state is None]):
        return "no other floating input is there to hold a special value"
    if may_overflow_as_divisors(captured, family):
        return "a reciprocal of such numbers is no number"
    if reason := why_it_is_for_other_code(captured, family):
        return reason
    if family != GIVEN:
        return ""
    if captured.inputs.fresh is None:
        return "the target has no get_inputs()"
    return "" if are_captured(captured, sizes) else "get_inputs() makes the captured shapes only"


# --- below: the answer


def _result_names(captured: Captured, is_backward: bool) -> list[str]:
    if not is_backward:
        return captured.output_names
    assert captured.backward_text is not None
    outputs = captured.backward_text.outputs
    return [output["name"] for output in outputs if output["node"] is not None]


def _nothing(reason: str) -> dict[str, Any]:
    return {
        "inputs": [],
        "expected": [],
        "native": [],
        "unspecified": [],
        "chosen": {},
        "roundings": {},
        "output_dtypes": {},
        "may_lose_nans": [],
        "eager_bytes": 0,
        "sample": None,
        "degenerate": True,
        "reason": reason,
    }


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
    names = _result_names(captured, is_backward)
    dtypes = result_dtypes(captured, is_backward)
    gradients: list[str] = []
    if is_backward:
        assert captured.backward is not None
        gradients = [f"{GRADIENT}{captured.output_names[p]}" for p in captured.backward.outputs]
    return {
        "inputs": _write_all(folder, "inputs", gradients, case.gradients),
        "expected": _write_wide(folder, "expected", names, results.expected),
        "chosen": {name: _write_chosen(folder, name, one) for name, one in zip(names, results.chosen) if one},
        "native": _write_native(folder, names, results),
        "unspecified": _write_unspecified(folder, names, results),
        "roundings": {
            name: rounding(expected, native, perturbed)
            for name, expected, native, perturbed in zip_longest(
                names, results.expected, results.native, results.perturbed
            )
        },
        "may_lose_nans": [name for name, may_lose in zip(names, results.may_lose_nans) if may_lose],
        "eager_bytes": results.eager_bytes,
        "output_dtypes": {name: PLAN_NAMES[dtype] for name, dtype in zip(names, dtypes)},
        "degenerate": bool(reason),
        "reason": reason or results.note,
    }


def _write_inputs(captured: Captured, request: dict[str, Any], case: Case) -> list[dict[str, Any]]:
    names = [argument.name for argument in captured.arguments]
    values = [_value(argument, case) for argument in captured.arguments]
    folder = os.path.join(os.path.abspath(request["directory"]), "inputs")
    return [captured.kept.write(os.path.join(folder, f"{name}.bin"), name, value) for name, value in zip(names, values)]


def _write_all(folder: str, kind: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    return [
        write_tensor(os.path.join(folder, kind, f"{name}.bin"), name, tensor) for name, tensor in zip(names, tensors)
    ]


def _write_wide(folder: str, kind: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """Write results as float64, which represents all dtypes exactly except 64-bit integers: those stay. Writes none
    when there are none."""
    wide = [tensor if tensor.dtype == torch.int64 else tensor.double() for tensor in tensors]
    return [
        write_tensor(os.path.join(folder, kind, f"{name}.wide.bin"), name, tensor) for name, tensor in zip(names, wide)
    ]


def _write_unspecified(folder: str, names: Sequence[str], results: Results) -> list[dict[str, Any]]:
    """Write the masks of elements for which any value is correct, of results that have some. Ties between equal
    elements are not among them: the reference has one choice of those."""
    pairs = zip_longest(results.undecided, results.chosen)
    masks = [where if chosen is None else where & ~chosen.where.to(where.device) for where, chosen in pairs]
    marked = [(name, mask) for name, mask in zip(names, masks) if bool(mask.any())]
    return _write_all(folder, "unspecified", [name for name, _ in marked], [mask for _, mask in marked])


def _write_chosen(folder: str, name: str, chosen: Chosen) -> dict[str, Any]:
    values = write_tensor(os.path.join(folder, "chosen", f"{name}.bin"), name, chosen.values)
    ties = write_tensor(os.path.join(folder, "ties", f"{name}.bin"), name, chosen.where)
    facts = {"dim": chosen.dim, "unit": chosen.unit, "least": chosen.least, "each_once": chosen.each_once}
    return {"values": values, "ties": ties, **facts}


def _write_native(folder: str, names: Sequence[str], results: Results) -> list[dict[str, Any]]:
    """Write PyTorch's own results, where their distance from the reference does not suffice."""
    told = [
        (name, native)
        for name, expected, native in zip(names, results.expected, results.native)
        if not is_plain(expected, native)
    ]
    return _write_wide(folder, "native", [name for name, _ in told], [native for _, native in told])


def _value(argument: Argument, case: Case) -> torch.Tensor:
    placeholder = argument.placeholder
    return case.inputs[placeholder.index] if placeholder.role == "input" else case.state[placeholder.node]
