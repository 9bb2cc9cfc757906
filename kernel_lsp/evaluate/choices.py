"""Places of elements that were chosen, as by `topk`, where PyTorch does not say which of equal ones it gives: each must
be the place of an element that is equal to the reference's, and none may be there twice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernel_lsp.evaluate.compare_chunks import Total

N_UNITS = 4
"""That equal elements may be apart: two that changed places may each have moved by one, there and back."""


@dataclass(frozen=True)
class Choice:
    """What was chosen from along `dim`; the fields are those of `worker_client.ChosenFrom`."""

    values: np.ndarray
    dim: int
    unit: float
    least: float
    each_once: bool

    def in_memory(self) -> Choice:
        """Not a map of a file."""
        return replace(self, values=self.values.copy())


def choice_total(
    choice: Choice, found: np.ndarray, reference: np.ndarray, native: np.ndarray, written: np.ndarray | None
) -> Total:
    """Of the places that `native` leaves open, NaN, and of which `reference` has one right choice."""
    is_open = np.isnan(native) & ~np.isnan(reference)
    if written is not None:
        is_open &= written.reshape(is_open.shape)
    places = _along(choice, found.reshape(reference.shape).astype(np.int64))
    right = _along(choice, np.nan_to_num(reference).astype(np.int64))
    n_elements = choice.values.shape[choice.dim]
    is_place = (places >= 0) & (places < n_elements)
    ours = np.take_along_axis(choice.values, np.where(is_place, places, 0), choice.dim)
    theirs = np.take_along_axis(choice.values, right, choice.dim)
    equal = np.abs(ours - theirs) <= N_UNITS * choice.unit * np.maximum(np.abs(theirs), choice.least)
    wrong = ~is_place | ~equal
    if choice.each_once:
        wrong |= _repeated(places, choice.dim, None if written is None else written.reshape(places.shape))
    wrong = wrong.reshape(is_open.shape) & is_open
    total = Total(n_judged=int(np.count_nonzero(is_open)), n_wrong=int(np.count_nonzero(wrong)))
    if total.n_wrong:
        total.worst, total.worst_excess = int(np.argmax(wrong)), 0.0
        total.max_error = float(np.abs(places - right).reshape(wrong.shape)[wrong].max())
    return total


def _along(choice: Choice, places: np.ndarray) -> np.ndarray:
    """With the dimension that was chosen along, where the output does without it."""
    return places if places.ndim == choice.values.ndim else np.expand_dims(places, choice.dim)


def _repeated(places: np.ndarray, dim: int, written: np.ndarray | None) -> np.ndarray:
    """Where a place is there more than once along the dimension, among those that were written."""
    n = places.shape[dim]
    own = -1 - np.arange(n).reshape([-1 if d == dim else 1 for d in range(places.ndim)])  # of no two places the same
    different = places if written is None else np.where(written, places, own)
    order = np.argsort(different, axis=dim, kind="stable")
    ascending = np.take_along_axis(different, order, dim)
    is_next_same = np.diff(ascending, axis=dim) == 0
    sides = [[(before, 1 - before) if d == dim else (0, 0) for d in range(places.ndim)] for before in (0, 1)]
    is_same = np.pad(is_next_same, sides[0]) | np.pad(is_next_same, sides[1])
    repeated = np.empty_like(is_same)
    np.put_along_axis(repeated, order, is_same, dim)
    return repeated
