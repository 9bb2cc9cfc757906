"""Test a task's claims: run a capture and the user's code on small sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import sympy
import torch

from ..host import threads_for, without_cuda
from .backward import BackwardProgram
from .captured import Captured
from .exported_program import OWNER, eagerly, quiet, user_outputs
from .symbols import expression_of

SMALL_SIZE, LEAST_SIZE = 6, 2
MAX_SMALL_ELEMENTS = 1 << 18
"""Maximum elements of one input at the small size; with more, as of images whose sizes are fixed, the least size is
tried: a U-Net of (6, 8, 64, 512) took longer to try than to capture."""
MAX_TRIAL_ELEMENTS = 1 << 22
"""Maximum elements of one input: larger trials would cost more than they show."""
RELATIVE_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}
DEFAULT_TOLERANCE = 1e-3
"""Loose, since a trial detects another formula, not another rounding."""
SEED = 20

Function = Callable[..., Any]


def smallest_size_that_agrees(captured: Captured, symbol: sympy.Symbol) -> int:
    """Return the smallest size, from 1 to the symbol's proven minimum, from which graph and code agree, as far as a few
    sizes between show: the steps down double, and begin anew below a size at which they differ.

    `torch.export` cannot prove sizes 0 and 1, and reports every relation among strides as a requirement of the code.
    A residual network's minima of 33 took 64 trials one by one, 1.3 s each.
    """
    agreed, differing, step = captured.bounds[symbol].minimum, 0, 1
    while agreed - differing > 1:
        tried = max(differing + 1, agreed - step)
        if agrees_at(captured, {symbol: tried}, None):
            agreed, step = tried, 2 * step
        else:
            differing, step = tried, 1
    return max(1, agreed)


def largest_size_that_holds(captured: Captured, symbol: sympy.Symbol) -> int | None:
    """Return the symbol's maximum, or None when graph and code agree beyond it: torch's own choice of a CPU kernel by
    batch size leaves such a maximum behind."""
    maximum = captured.bounds[symbol].maximum
    if maximum is None:
        return None
    beyond = [maximum + 1, 2 * maximum + 1, 4 * maximum + 1]
    return None if all(agrees_at(captured, {symbol: size}, None) for size in beyond) else maximum


def agrees_at(captured: Captured, wanted: dict[sympy.Symbol, int], reference: Function | None) -> bool:
    """Check whether the graph (and a printed reference) agrees with the user's code, with the wanted sizes and others
    small. False also where no size that can be tried runs."""
    for small in (True, False):
        sizes = _sizes(captured, wanted, small=small)
        shapes = input_shapes(captured, sizes)
        if max([1, *(torch.Size(shape).numel() for shape in shapes)]) > MAX_TRIAL_ELEMENTS:
            continue
        inputs = _trial_inputs(captured, shapes, sizes)
        named = {str(position): shape for position, shape in enumerate(shapes)}
        with threads_for(named), torch.random.fork_rng(devices=[]), quiet(), contextlib.suppress(Exception):
            # The code may refuse these sizes with any exception: the larger trial, or none, decides then.
            with torch.no_grad():
                values = [inputs[p.index] if p.role == "input" else p.value for p in captured.program.placeholders]
                expected = call_original(captured, values)
                if not _agree(expected, _run_core(captured, values, sizes)):
                    return False
                if reference is not None:
                    return _agree(expected, _run_reference(captured, reference, inputs))
            return captured.backward is None or _backward_agrees(captured, captured.backward, values, sizes)
    return False


def call_original(captured: Captured, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run the user's own code, in its own dtypes, with the values of the placeholders; it may change copies of the
    buffers."""
    given = list(zip(captured.program.placeholders, values))
    used = {argument.placeholder.qualified_name for argument in captured.arguments}
    state = {
        f"{OWNER}.{p.qualified_name}": value.clone() if p.role == "buffer" else value
        for p, value in given
        if p.role in ("parameter", "buffer")
    }
    state = _without_tied(captured.wrapper, state, {f"{OWNER}.{name}" for name in used})
    inputs = tuple(value for p, value in given if p.role == "input")
    with without_cuda(), eagerly():
        return list(torch.func.functional_call(captured.wrapper, state, inputs))


def _without_tied(module: Any, state: dict[str, Any], used: set[str]) -> dict[str, Any]:
    """Leave out names of tied tensors that the graph does not use: `functional_call` takes one of each."""
    names: dict[int, list[str]] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    dropped = {name for tied in names.values() if used & {*tied} for name in tied if name not in used}
    return {name: value for name, value in state.items() if name not in dropped}


def leaves_of(captured: Captured, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of the placeholders' values, which require gradients where these are wanted."""
    wanted = captured.backward.of if captured.backward is not None else []
    return [value.detach().clone().requires_grad_(position in wanted) for position, value in enumerate(values)]


def differentiate(
    captured: Captured,
    outputs: list[torch.Tensor],
    leaves: list[torch.Tensor],
    gradients: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Return the gradients of the wanted placeholders that exist in the captured backward."""
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


def input_shapes(captured: Captured, sizes: dict[sympy.Symbol, int]) -> list[tuple[int, ...]]:
    """Return the shapes of all tensor inputs for given sizes of the symbols."""
    shapes: list[tuple[int, ...]] = [leaf.shape for leaf in captured.inputs.tensors]
    for placeholder, fake in zip(captured.program.placeholders, captured.program.fake_inputs):
        if placeholder.role == "input":
            shapes[placeholder.index] = tuple(_size(size, sizes) for size in fake.shape)
    return shapes


def _sizes(captured: Captured, wanted: dict[sympy.Symbol, int], *, small: bool) -> dict[sympy.Symbol, int]:
    sizes = captured.captured_sizes
    if small:
        sizes = _small_sizes(captured, SMALL_SIZE)
        shapes = input_shapes(captured, sizes)
        if max((torch.Size(shape).numel() for shape in shapes), default=0) > MAX_SMALL_ELEMENTS:
            sizes = _small_sizes(captured, LEAST_SIZE)
    return {**sizes, **wanted}


def _small_sizes(captured: Captured, least: int) -> dict[sympy.Symbol, int]:
    sizes = {}
    for symbol, size in captured.captured_sizes.items():
        sizes[symbol] = min(size, max(captured.bounds[symbol].minimum, least))
    # Use different sizes for different symbols, where there is room: equal ones would hide a mix-up.
    for offset, symbol in enumerate(sizes):
        if sizes[symbol] + offset <= captured.captured_sizes[symbol]:
            sizes[symbol] += offset
    return sizes


def _size(size: Any, sizes: dict[sympy.Symbol, int]) -> int:
    expression = expression_of(size)
    if expression is None:
        return int(size)
    return sizes[expression] if expression in sizes else int(expression.subs(sizes))


def _trial_inputs(
    captured: Captured, shapes: Sequence[tuple[int, ...]], sizes: dict[sympy.Symbol, int]
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    made = []
    for leaf, shape in zip(captured.inputs.tensors, shapes):
        if leaf.dtype.is_floating_point:
            made.append(torch.randn(shape, generator=generator).to(leaf.dtype))
        else:
            low, high = leaf.integer_range or (0, 2)
            high = max(low + 1, min([high, *sizes.values()]))
            made.append(torch.randint(low, high, shape, generator=generator).to(leaf.dtype))
    return made


class _WrongShape(Exception):
    pass


class _ShapeChecker(torch.fx.Interpreter):
    """Runs the core graph, and raises where a result's shape differs from the declared one."""

    def __init__(self, module: torch.fx.GraphModule, sizes: dict[sympy.Symbol, int]) -> None:
        super().__init__(module)
        self._sizes = sizes

    def run_node(self, node: Any) -> Any:
        value = super().run_node(node)
        declared = node.meta.get("val")
        if isinstance(value, torch.Tensor) and isinstance(declared, torch.Tensor):
            expected = tuple(_size(size, self._sizes) for size in declared.shape)
            if tuple(value.shape) != expected:
                raise _WrongShape(f"{node.name} has shape {tuple(value.shape)}, declared {expected}")
        return value


def _run_core(captured: Captured, values: Sequence[torch.Tensor], sizes: dict[sympy.Symbol, int]) -> list[torch.Tensor]:
    """Run the graph that the task holds."""
    program = captured.program
    results = list(_ShapeChecker(program.core.graph_module, sizes).run(*values, enable_io_processing=False))
    return results[len(results) - len(user_outputs(program.core)) :]


def _backward_agrees(
    captured: Captured, backward: BackwardProgram, values: Sequence[torch.Tensor], sizes: dict[sympy.Symbol, int]
) -> bool:
    """Check whether the captured backward agrees with autograd through the user's code."""
    leaves = leaves_of(captured, values)
    outputs = call_original(captured, leaves)
    generator = torch.Generator().manual_seed(SEED)
    gradients = [torch.randn(outputs[p].shape, generator=generator).to(outputs[p].dtype) for p in backward.outputs]
    expected = differentiate(captured, outputs, leaves, gradients)
    with torch.no_grad():
        found = _ShapeChecker(backward.module, sizes).run(*values, *gradients, enable_io_processing=False)
    return _agree(expected, [gradient for gradient in found if gradient is not None])


def _run_reference(captured: Captured, reference: Function, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    keywords = {
        a.name: inputs[a.placeholder.index] if a.placeholder.role == "input" else a.placeholder.value
        for a in captured.arguments
    }
    scalars = {leaf.name: leaf.value for leaf in captured.inputs.leaves if not hasattr(leaf, "dtype")}
    numbers = {number.name: number.value for number in captured.module_numbers}
    result = reference(**keywords, **scalars, **numbers)
    return list(result) if isinstance(result, tuple) else [result]


def _agree(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> bool:
    if len(expected) != len(found):
        return False
    return all(_close(a, b) for a, b in zip(expected, found))


def _close(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    tolerance = RELATIVE_TOLERANCE.get(expected.dtype, DEFAULT_TOLERANCE)
    return torch.allclose(expected.double(), found.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set the global random state temporarily."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
