"""The command `make_cases`: inputs of one family, the fp64 reference and PyTorch's own result, in files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import sympy
import torch

from .backward import GRADIENT
from .capture import WARM, Argument, Captured
from .dtypes import PLAN_NAMES
from .exact import run_exact
from .failure import Failure, TargetFailure, raised_by_user, short_message
from .families import FAMILIES, SPECIAL_VALUES, buffer_values, integers, near_own_values, place_special, resized
from .files import write_tensor
from .index_bounds import index_limits
from .inputs import TensorLeaf
from .machine import without_cuda
from .program import quiet, user_outputs
from .roundings import is_plain, rounding
from .task import DEFAULT_INTEGER_RANGE, evaluate_size
from .trial import call_original, input_shapes, seeded

GIVEN = "given"
MOSTLY = 0.5
"""A case whose reference is non-finite in more than this share of an output tells nothing about a kernel."""


@dataclass
class Case:
    """One case in memory. `inputs` has every tensor input of the user's call; `state` every other placeholder."""

    inputs: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    gradients: list[torch.Tensor]


@dataclass
class _Results:
    """What the outputs should be: in fp64, by PyTorch at the declared dtypes, and in fp64 on inputs moved by one
    rounding (empty where that makes no sense). `note` says what had to be done otherwise, `eager_bytes` what PyTorch
    needed beside its inputs on a GPU."""

    expected: list[torch.Tensor]
    native: list[torch.Tensor]
    perturbed: list[torch.Tensor]
    note: str
    eager_bytes: int = 0


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
    with quiet(), without_cuda():
        expected = _expected(captured, case, family, seed, is_backward)
        native, note = _native(captured, case, expected, is_backward)
        perturbed = [] if family in SPECIAL_VALUES else _perturbed(captured, case, seed, is_backward)
    return _write(captured, request, case, _Results(expected, native, perturbed, note), is_backward)


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
    given = _given(captured, seed)
    at_captured = _are_captured(captured, sizes)
    inputs = [
        _input(captured, position, shape, family, seed, given, sizes, at_captured=at_captured)
        for position, shape in enumerate(shapes)
    ]
    passed = [value for value, leaf in zip(inputs, captured.inputs.tensors) if leaf.state is None]
    place_special(family, passed, _generator(seed, family, "special"))
    return Case(inputs, _state(captured, seed), [])


def _given(captured: Captured, seed: int) -> list[torch.Tensor] | None:
    """The user's own inputs; made only where their values matter."""
    needs = any(not leaf.dtype.is_floating_point and leaf.integer_range is None for leaf in captured.inputs.tensors)
    if captured.inputs.fresh is None:
        return None
    if not needs and max(leaf.empty().numel() for leaf in captured.inputs.tensors) > 1 << 28:
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
    generator = _generator(seed, family, leaf.name)
    if leaf.dtype.is_floating_point:
        return FAMILIES[family](shape, generator).to(leaf.dtype).contiguous()
    limits = leaf.integer_range or _observed_range(own) or DEFAULT_INTEGER_RANGE
    return integers(shape, leaf.dtype, _limited(captured, position, limits, leaf.integer_range, sizes), generator)


def _lifted_state(captured: Captured, leaf: TensorLeaf, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A parameter near its own values, a buffer as it is; at other sizes like them."""
    assert leaf.state is not None
    generator = _generator(seed, "state", leaf.state.name)
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
        generator = _generator(seed, "state", placeholder.qualified_name)
        if placeholder.role == "parameter":
            state[placeholder.node] = near_own_values(placeholder.value, generator)
        elif placeholder.role == "buffer":
            state[placeholder.node] = buffer_values(placeholder.value, generator)
        elif placeholder.role == "constant":
            state[placeholder.node] = placeholder.value.detach().clone()
    return state


def _generator(seed: int, *names: str) -> torch.Generator:
    """Its own stream per tensor, the same on every machine."""
    return torch.Generator().manual_seed(zlib.crc32("/".join([str(seed), *names]).encode()))


# --- below: running


def _expected(captured: Captured, case: Case, family: str, seed: int, is_backward: bool) -> list[torch.Tensor]:
    """The fp64 results: outputs, or the gradients of the wanted arguments. Fills in the case's gradients."""
    values = _placeholder_values(captured, case)
    try:
        if not is_backward:
            with torch.no_grad():
                return run_exact(captured.program, values)
        wide = [value.double() if value.is_floating_point() else value for value in values]
        leaves = _leaves(captured, wide)
        outputs = run_exact(captured.program, leaves)
        case.gradients = _gradients(captured, outputs, family, seed)
        return _differentiate(captured, outputs, leaves, [gradient.double() for gradient in case.gradients])
    except Exception as error:  # any operator may refuse these sizes or values, with any exception
        raise _refused(captured, error) from None


def _perturbed(captured: Captured, case: Case, seed: int, is_backward: bool) -> list[torch.Tensor]:
    """The fp64 results on inputs moved by one rounding of the type that kernels compute in. How far they move is what
    a backward-stable algorithm may be off; PyTorch's own error on one draw may be luckier than that."""
    generator = _generator(seed, "rounding")
    values = [_moved(value, generator) for value in _placeholder_values(captured, case)]
    if not is_backward:
        with torch.no_grad():
            return run_exact(captured.program, values)
    leaves = _leaves(captured, values)
    outputs = run_exact(captured.program, leaves)
    gradients = [_moved(gradient, generator) for gradient in case.gradients]
    return _differentiate(captured, outputs, leaves, gradients)


def _moved(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """In float64, each element up or down by half a unit of its last place; sums are kept in f32 for narrower types."""
    if not value.is_floating_point():
        return value
    unit = torch.finfo(torch.float64 if value.dtype == torch.float64 else torch.float32).eps / 2
    signs = torch.randint(0, 2, value.shape, generator=generator).double().mul_(2 * unit).sub_(unit)
    return value.double() * (1.0 + signs)


def _native(
    captured: Captured, case: Case, expected: list[torch.Tensor], is_backward: bool
) -> tuple[list[torch.Tensor], str]:
    """The user's own code at the declared dtypes; the rounded reference and a note where torch has no kernel for it."""
    try:
        if not is_backward:
            with torch.no_grad():
                return call_original(captured, case.inputs, case.state), ""
        leaves = _leaves(captured, _placeholder_values(captured, case))
        inputs, state = list(case.inputs), dict(case.state)
        for placeholder, leaf in zip(captured.program.placeholders, leaves):
            if placeholder.role == "input":
                inputs[placeholder.index] = leaf
            else:
                state[placeholder.node] = leaf
        outputs = call_original(captured, inputs, state)
        return _differentiate(captured, outputs, leaves, case.gradients), ""
    except (RuntimeError, NotImplementedError) as error:
        if "not implemented for" not in str(error):
            raise _refused(captured, error) from None
        dtypes = _result_dtypes(captured, is_backward)
        note = f"PyTorch cannot run this on a CPU ({short_message(error)}): its result is the rounded reference"
        return [result.to(dtype) for result, dtype in zip(expected, dtypes)], note
    except Exception as error:  # as in _expected
        raise _refused(captured, error) from None


def _placeholder_values(captured: Captured, case: Case) -> list[torch.Tensor]:
    return [case.inputs[p.index] if p.role == "input" else case.state[p.node] for p in captured.program.placeholders]


def _leaves(captured: Captured, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the placeholders' values; those to differentiate with respect to ask for their gradient."""
    wanted = captured.backward.of if captured.backward is not None else []
    return [value.detach().clone().requires_grad_(position in wanted) for position, value in enumerate(values)]


def _gradients(captured: Captured, outputs: list[torch.Tensor], family: str, seed: int) -> list[torch.Tensor]:
    """Random gradients of the floating outputs, at their declared dtypes."""
    make = FAMILIES["small_integers" if family == "small_integers" else "normal"]
    dtypes = _declared_outputs(captured)
    return [
        make(tuple(outputs[p].shape), _generator(seed, family, GRADIENT, captured.output_names[p])).to(dtypes[p])
        for p in captured.backward.outputs  # type: ignore[union-attr]
    ]


def _differentiate(
    captured: Captured,
    outputs: list[torch.Tensor],
    leaves: list[torch.Tensor],
    gradients: list[torch.Tensor],
) -> list[torch.Tensor]:
    """The gradients of the wanted placeholders that exist in the captured backward."""
    backward = captured.backward
    assert backward is not None
    wanted = [position for position, result in zip(backward.of, backward.results) if result is not None]
    pairs = [(outputs[p], g) for p, g in zip(backward.outputs, gradients) if outputs[p].requires_grad]
    found = torch.autograd.grad(
        [output for output, _ in pairs],
        [leaves[position] for position in wanted],
        [gradient for _, gradient in pairs],
        allow_unused=True,
    )
    return [
        gradient if gradient is not None else torch.zeros_like(leaves[position])
        for position, gradient in zip(wanted, found)
    ]


def _refused(captured: Captured, error: BaseException) -> TargetFailure:
    source = captured.source
    return raised_by_user(
        error,
        "running the target on test inputs",
        source["file"],
        line=source["line"],
        next_step="capture with sizes at which the target runs",
    )


# --- below: the answer


def _result_names(captured: Captured, is_backward: bool) -> list[str]:
    if not is_backward:
        return captured.output_names
    assert captured.backward_text is not None
    outputs = captured.backward_text.outputs
    return [output["name"] for output in outputs if output["node"] is not None]


def _result_dtypes(captured: Captured, is_backward: bool) -> list[torch.dtype]:
    if not is_backward:
        return _declared_outputs(captured)
    assert captured.backward is not None
    pairs = zip(captured.backward.of, captured.backward.results)
    return [captured.program.fake_inputs[position].dtype for position, result in pairs if result is not None]


def _declared_outputs(captured: Captured) -> list[torch.dtype]:
    return [node.meta["val"].dtype for node in user_outputs(captured.program.functional)]


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
    results: _Results,
    is_backward: bool,
) -> dict[str, Any]:
    reason = "" if request["family"] in SPECIAL_VALUES else _degenerate(results.expected, results.native)
    folder = os.path.abspath(request["directory"])
    names = _result_names(captured, is_backward)
    dtypes = _result_dtypes(captured, is_backward)
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


def _write_native(folder: str, names: Sequence[str], results: _Results) -> list[dict[str, Any]]:
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


def _degenerate(expected: list[torch.Tensor], native: list[torch.Tensor]) -> str:
    for what, tensors in (("reference", expected), ("result at the declared dtype", native)):
        for tensor in tensors:
            if tensor.numel() and float((~torch.isfinite(tensor)).float().mean()) > MOSTLY:
                return f"the {what} is mostly not finite for these inputs"
    return ""
