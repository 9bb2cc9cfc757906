"""Limit the calls that are traced with symbolic sizes: the steps of an unrolled loop take most of a capture's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .symbols import is_settled

LIMITS = ((128, 1), (256, 0))
"""Maximum calls of torch functions, and the symbolic dims per input that are left beyond them. 64 steps of a delta
rule, 960 calls, took 52 s of a processor with every dim symbolic, 25 s with one per input and 6 s with none."""


class TooManyCalls(Exception):
    """The trace is too long for its symbolic dims: `to_fix` has those that must have their captured sizes, as positions
    of input and dim."""

    def __init__(self, to_fix: frozenset[tuple[int, int]], note: str) -> None:
        super().__init__()
        self.to_fix, self.note = to_fix, note


class CallLimit(TorchFunctionMode):
    """Raises TooManyCalls at the first call beyond the limit for the dims of `tensors` that are symbolic then."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors, self._n_calls = tensors, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._n_calls += 1
        for n_calls, n_dims in LIMITS:
            if self._n_calls == n_calls:
                self._check(n_dims)
        return function(*args, **(kwargs or {}))

    def _check(self, n_dims: int) -> None:
        to_fix = {(position, dim) for position, dims in enumerate(self._symbolic()) for dim in dims[n_dims:]}
        if to_fix:
            left = "only the first dim of each input may change" if n_dims else "its sizes are those of the capture"
            note = f"the code makes more than {self._n_calls} calls: {left}"
            raise TooManyCalls(frozenset(to_fix), note)

    def _symbolic(self) -> list[list[int]]:
        """Return the dims of each input that are symbolic still: a loop over one settles its size."""
        return [
            [dim for dim, size in enumerate(tensor.shape) if isinstance(size, torch.SymInt) and not is_settled(size)]
            for tensor in self._tensors
        ]
