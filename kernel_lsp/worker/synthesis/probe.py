"""Probe an operator on small tensors: on which ranks, ranges and further operands does it give a finite tensor?"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from random import Random
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .tensors import NORMAL, POSITIVE, RANGES, STRATEGIES, UNIT, call_operator, draw_call, draw_values, tensor_arguments

SHAPES = {1: (24,), 2: (6, 16), 3: (4, 8, 18), 4: (2, 8, 9, 10), 5: (2, 4, 6, 7, 8)}
"""Rank -> the probe's shape. Sizes differ, so that an operator which needs equal ones is noticed."""
N_TRIES = 2
MAX_OPERANDS = 2
RESULTS = {torch.float32: "float", torch.int64: "int"}


def find_uses(entry: dict[str, Any], operator: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return the uses of an operator: ``{"rank", "values", "strategies", "result", "result_values", "ops"}``."""
    n_operands = len(tensor_arguments(entry))
    if n_operands > MAX_OPERANDS:
        return []
    return [
        use
        for rank in SHAPES
        for strategies in _strategies(n_operands)
        if (use := _widest(entry, operator, rank, list(strategies))) is not None
    ]


# --- below: one use


def _strategies(n_operands: int) -> list[tuple[str, ...]]:
    """Return the operands' strategies to try. Two operands are alike, or the second is of labels."""
    alike = [(name,) * n_operands for name in STRATEGIES]
    labels = ("classes", "signs") if n_operands == 2 else ()
    return list(dict.fromkeys([*alike, *(("same", name) for name in labels)]))


def _widest(
    entry: dict[str, Any], operator: Callable[..., Any], rank: int, strategies: list[str]
) -> dict[str, Any] | None:
    """Return the use with the widest range of values that works."""
    for values in RANGES:
        results = list(_results(entry, operator, rank, values, strategies))
        if all(result is None for _, result in results):
            return None  # shapes do not fit: so they would not in another range
        good = [ops for ops, result in results if _is_good(result)]
        if good and not any(_is_broken(result) for _, result in results):
            tensors = [result for _, result in results if _is_good(result)]
            return {
                "rank": rank,
                "values": values,
                "strategies": strategies,
                "result": RESULTS[tensors[0].dtype],
                "result_values": _range(tensors),
                "ops": good[0],
            }
    return None


def _results(
    entry: dict[str, Any], operator: Callable[..., Any], rank: int, values: str, strategies: list[str]
) -> Iterator[tuple[list[str], Any]]:
    """Yield the operators that ran and the result, for each draw of the arguments; None for a failure."""
    for number in range(N_TRIES):
        random = Random(f"{entry['short']}/{rank}/{number}")
        shape = SHAPES[rank]
        drawn = draw_call(entry, shape, values, strategies, random)
        if drawn is None:
            return
        scalars, operands = drawn
        generator = torch.Generator().manual_seed(number)
        first = draw_values(shape, values, generator)
        given = {n: draw_values(each.shape, each.values, generator, each.high) for n, each in operands.items()}
        yield _run(entry, operator, first, scalars, given)


def _run(
    entry: dict[str, Any],
    operator: Callable[..., Any],
    first: torch.Tensor,
    scalars: dict[str, Any],
    operands: dict[str, torch.Tensor],
) -> tuple[list[str], Any]:
    before, names = first.clone(), _Names()
    try:
        with warnings.catch_warnings(), torch.no_grad(), names:
            warnings.simplefilter("error")  # a deprecated or doubtful use makes no good task
            result = call_operator(entry, operator, first, scalars, operands)
    except Exception:  # whatever an operator says of drawn arguments, they are not for it
        return names.names, None
    if not isinstance(result, torch.Tensor) or _shares(result, first) or not torch.equal(before, first):
        return names.names, None
    return names.names, result


def _is_good(result: Any) -> bool:
    return (
        isinstance(result, torch.Tensor) and result.dtype in RESULTS and result.numel() > 0 and not _is_broken(result)
    )


def _is_broken(result: Any) -> bool:
    """Tell a result that is not finite: the operator needs a narrower range."""
    return isinstance(result, torch.Tensor) and not bool(torch.isfinite(result).all())


def _shares(result: torch.Tensor, operand: torch.Tensor) -> bool:
    return result.untyped_storage().data_ptr() == operand.untyped_storage().data_ptr()


def _range(results: list[torch.Tensor]) -> str:
    low = min(float(result.min()) for result in results)
    high = max(float(result.max()) for result in results)
    if low <= 0.0:
        return NORMAL
    return UNIT if high < 1.0 else POSITIVE


class _Names(TorchDispatchMode):
    """Note the names of the ATen operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
