"""The command `make_cases`: inputs of one family, the fp64 reference and PyTorch's own result, in files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import sympy
import torch

from .backward import GRADIENT
from .captured import WARM, Argument, Captured
from .drawing import draw, own_generator
from .dtypes import PLAN_NAMES
from .failure import Failure
from .families import FAMILIES, SPARSE_FAMILIES, buffer_values, integers, near_own_values, place_special, resized
from .files import write_tensor
from .index_bounds import index_limits
from .inputs import TensorLeaf
from .results import Case, Results, give_back_memory, result_dtypes, results_of
from .roundings import is_plain, rounding
from .task import DEFAULT_INTEGER_RANGE, evaluate_size
from .telling import why_it_tells_nothing
from .trial import input_shapes, seeded

GIVEN = "given"


def make_cases(request: dict[str, Any]) -> dict[str, Any]:
    """Make one case and write it below ``directory``. Raises Failure."""
    captured = WARM.find(int(request.get("configuration", 0)))
    if captured is None:
        raise Failure("make_cases needs a capture in the same worker first")
    family, seed = request["family"], int(request["seed"])
    if family != GIVEN and family not in FAMILIES:
        raise Failure(f"there is no input family '{family}'; known: {GIVEN}, {', '.join(FAMILIES)}")
    is_backward = request["operation"] == "backward"
    if is_backward and captured.backward is None:
        raise Failure("the task was captured without its backward")
    sizes = _bind(captured, request["shapes"])
    reason = _cannot_make(captured, family, sizes)
    if reason:
        return _nothing(reason)
    case = _make(captured, family, seed, sizes)
    gpu = request.get("device")
    results = results_of(captured, case, family, seed, is_backward, gpu)
    answer = _write(captured, request, case, results, is_backward)
    del results
    give_back_memory(gpu)
    return answer


# --- below: sizes


def _bind(captured: Captured, shapes: dict[str, list[int]]) -> dict[sympy.Symbol, int]:
    """The size of every symbol, from the shapes of the arguments. Raises Failure when they do not fit the capture."""
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
    """Why the family cannot be made at these sizes; empty when it can."""
    if family != GIVEN:
        return ""
    if captured.inputs.fresh is None:
        return "the target has no get_inputs()"
    return "" if _are_captured(captured, sizes) else "get_inputs() makes the captured shapes only"


def _are_captured(captured: Captured, sizes: dict[sympy.Symbol, int]) -> bool:
    return all(captured.captured_sizes.get(symbol, size) == size for symbol, size in sizes.items())


# --- below: values


def _make(captured: Captured, family: str, seed: int, sizes: dict[sympy.Symbol, int]) -> Case:
    shapes = input_shapes(captured, {**captured.captured_sizes, **sizes})
    at_captured = _are_captured(captured, sizes)
    given = _given(captured, seed, is_wanted=family == GIVEN and at_captured)
    inputs = [
        _input(captured, position, shape, own_family, seed, given, sizes, at_captured=at_captured)
        for position, (shape, own_family) in enumerate(zip(shapes, _own_families(captured, family, shapes)))
    ]
    passed = [value for value, leaf in zip(inputs, captured.inputs.tensors) if leaf.state is None]
    place_special(family, passed, own_generator(seed, family, "special"))
    return Case(inputs, _state(captured, seed), [])


def _own_families(captured: Captured, family: str, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """The family of each input: not all of them have a sparse one."""
    sizes = [math.prod(s) if t.dtype.is_floating_point else 0 for s, t in zip(shapes, captured.inputs.tensors)]
    is_shared = family not in SPARSE_FAMILIES
    return [family if is_shared or size == max(sizes) else "normal" for size in sizes]


def _given(captured: Captured, seed: int, *, is_wanted: bool) -> list[torch.Tensor] | None:
    """The user's own inputs; made only where they are `is_wanted`, or where integers among them tell their range."""
    is_wanted |= any(not leaf.dtype.is_floating_point for leaf in captured.inputs.tensors)
    if captured.inputs.fresh is None or not is_wanted:
        return None
    with seeded(seed):
        return captured.inputs.fresh()


def _input(
    captured: Captured,
    position: int,
    shape: tuple[int, ...],
    family: str,
    seed: int,
    given: list[torch.Tensor] | None,
    sizes: dict[sympy.Symbol, int],
    *,
    at_captured: bool,
) -> torch.Tensor:
    leaf = captured.inputs.tensors[position]
    if leaf.state is not None:
        return _lifted_state(captured, leaf, shape, seed)
    own = given[position] if given is not None else None
    if own is not None and at_captured and (family == GIVEN or not leaf.dtype.is_floating_point):
        return own.clone()
    if leaf.dtype.is_floating_point:
        return draw(family, shape, leaf.dtype, seed, leaf.name)
    generator = own_generator(seed, family, leaf.name)
    limits = leaf.integer_range or _observed_range(own) or DEFAULT_INTEGER_RANGE
    return integers(shape, leaf.dtype, _limited(captured, position, limits, leaf.integer_range, sizes), generator)


def _lifted_state(captured: Captured, leaf: TensorLeaf, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A parameter near its own values, a buffer as it is; at other sizes like them."""
    assert leaf.state is not None
    generator = own_generator(seed, "state", leaf.state.name)
    own = resized(captured.inputs.state[leaf.name], shape, generator)
    return near_own_values(own, generator) if leaf.state.role == "parameter" else buffer_values(own, generator)


def _observed_range(own: torch.Tensor | None) -> tuple[int, int] | None:
    if own is None or own.dtype == torch.bool or not own.numel():
        return None
    return int(own.min()), int(own.max()) + 1


def _limited(
    captured: Captured,
    position: int,
    limits: tuple[int, int],
    stated: tuple[int, int] | None,
    sizes: dict[sympy.Symbol, int],
) -> tuple[int, int]:
    """[low, high), kept below the size of the dim that the code indexes with these integers."""
    argument = next((a for a in captured.arguments if a.placeholder.index == position), None)
    text = index_limits(captured).get(argument.name) if argument is not None else None
    if text is None:
        return limits
    size = evaluate_size(text, {captured.symbols.names[s]: n for s, n in sizes.items() if s in captured.symbols.names})
    low, high = limits
    known = stated is not None or limits != DEFAULT_INTEGER_RANGE
    return max(low, -size), min(high, size) if known else size


def _state(captured: Captured, seed: int) -> dict[str, torch.Tensor]:
    """Parameters near their own values, buffers and constants as they are, by placeholder."""
    state = {}
    for placeholder in captured.program.placeholders:
        generator = own_generator(seed, "state", placeholder.qualified_name)
        if placeholder.role == "parameter":
            state[placeholder.node] = near_own_values(placeholder.value, generator)
        elif placeholder.role == "buffer":
            state[placeholder.node] = buffer_values(placeholder.value, generator)
        elif placeholder.role == "constant":
            state[placeholder.node] = placeholder.value.detach().clone()
    return state


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
        "roundings": {},
        "output_dtypes": {},
        "eager_bytes": 0,
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
    reason = why_it_tells_nothing(captured, request["family"], results.expected, results.native)
    folder = os.path.abspath(request["directory"])
    names = _result_names(captured, is_backward)
    dtypes = result_dtypes(captured, is_backward)
    inputs = [(a.name, _value(a, case)) for a in captured.arguments]
    if is_backward:
        assert captured.backward is not None
        gradients = [f"{GRADIENT}{captured.output_names[p]}" for p in captured.backward.outputs]
        inputs = [*zip(gradients, case.gradients), *inputs]
    return {
        "inputs": [write_tensor(os.path.join(folder, "inputs", f"{n}.bin"), n, t) for n, t in inputs],
        "expected": _write_wide(folder, "expected", names, results.expected),
        "native": _write_native(folder, names, results),
        "roundings": {
            name: rounding(expected, native, perturbed)
            for name, expected, native, perturbed in zip_longest(
                names, results.expected, results.native, results.perturbed
            )
        },
        "eager_bytes": results.eager_bytes,
        "output_dtypes": {name: PLAN_NAMES[dtype] for name, dtype in zip(names, dtypes)},
        "degenerate": bool(reason),
        "reason": reason or results.note,
    }


def _write_wide(folder: str, kind: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """Results as float64, whatever their dtype. None are written when there are none."""
    return [
        write_tensor(os.path.join(folder, kind, f"{name}.f64.bin"), name, tensor.double())
        for name, tensor in zip(names, tensors)
    ]


def _write_native(folder: str, names: Sequence[str], results: Results) -> list[dict[str, Any]]:
    """PyTorch's own results, where their distance from the reference does not say everything."""
    told = [
        (name, native)
        for name, expected, native in zip(names, results.expected, results.native)
        if not is_plain(expected, native)
    ]
    return _write_wide(folder, "native", [name for name, _ in told], [native for _, native in told])


def _value(argument: Argument, case: Case) -> torch.Tensor:
    placeholder = argument.placeholder
    return case.inputs[placeholder.index] if placeholder.role == "input" else case.state[placeholder.node]
