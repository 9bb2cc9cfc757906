"""Judge indices of selected elements, as of `topk`, where PyTorch does not define which of equal elements it returns.
Each must index an element that equals the reference's, without repetition."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernel_lsp.process.worker_client import ChosenFrom
from kernel_lsp.verify.oracle.compare_chunks import Total

N_UNITS = 4
"""Maximum difference of equal elements, in units: two that changed places may each have moved by one unit."""


@dataclass(frozen=True)
class Choice:
    """The elements selected from, and the kind of selection. `ties` masks the output's elements that are judged by it:
    there the index of any equal element is correct."""

    values: np.ndarray
    ties: np.ndarray
    how: ChosenFrom

    @property
    def dim(self) -> int:
        """Return the dim of the selection."""
        return self.how.dim

    def in_memory(self) -> Choice:
        """Return a copy that is not backed by a file."""
        return replace(self, values=self.values.copy(), ties=self.ties.copy())


def choice_total(choice: Choice, found: np.ndarray, reference: np.ndarray, written: np.ndarray | None) -> Total:
    """Judge the indices of tied elements, of which `reference` has one correct choice."""
    is_open = choice.ties if written is None else choice.ties & written.reshape(choice.ties.shape)
    shape = np.moveaxis(_along(choice, is_open), choice.dim, -1).shape
    open_lines = _lines(choice, is_open)
    asked = open_lines.any(axis=1)
    values, open_lines = _lines(choice, choice.values)[asked], open_lines[asked]
    places = _lines(choice, found.reshape(reference.shape))[asked].astype(np.int64)
    right = np.where(open_lines, _lines(choice, reference)[asked], 0).astype(np.int64)
    is_place = (places >= 0) & (places < values.shape[1])
    ours = np.take_along_axis(values, np.where(is_place, places, 0), axis=1)
    theirs = np.take_along_axis(values, right, axis=1)
    apart = N_UNITS * choice.how.unit * np.maximum(np.abs(theirs), choice.how.least)
    wrong = ~is_place | ~(np.abs(ours - theirs) <= apart)
    if choice.how.each_once:
        wrong |= _repeated(places, None if written is None else _lines(choice, written.reshape(is_open.shape))[asked])
    wrong &= open_lines
    total = Total(n_judged=int(np.count_nonzero(is_open)), n_wrong=int(np.count_nonzero(wrong)))
    if total.n_wrong:
        everywhere = np.zeros((asked.size, wrong.shape[1]), bool)
        everywhere[asked] = wrong
        total.worst = int(np.argmax(np.moveaxis(everywhere.reshape(shape), -1, choice.dim)))
        total.worst_excess, total.max_error = 0.0, float(np.abs(places - right)[wrong].max())
    return total


def _along(choice: Choice, places: np.ndarray) -> np.ndarray:
    """Restore the dim of the selection, where the output lacks it."""
    return places if places.ndim == choice.values.ndim else np.expand_dims(places, choice.dim)


def _lines(choice: Choice, array: np.ndarray) -> np.ndarray:
    """Return one row for each line along the dim."""
    moved = np.moveaxis(_along(choice, array), choice.dim, -1)
    return moved.reshape(-1, moved.shape[-1])


def _repeated(places: np.ndarray, written: np.ndarray | None) -> np.ndarray:
    """Return the mask of indices that occur more than once in their row, among those that were written."""
    own = -1 - np.arange(places.shape[1])  # distinct from each other and from every index
    different = places if written is None else np.where(written, places, own)
    order = np.argsort(different, axis=1, kind="stable")
    is_next_same = np.diff(np.take_along_axis(different, order, axis=1), axis=1) == 0
    is_same = np.pad(is_next_same, ((0, 0), (0, 1))) | np.pad(is_next_same, ((0, 0), (1, 0)))
    repeated = np.empty_like(is_same)
    np.put_along_axis(repeated, order, is_same, axis=1)
    return repeated
