"""Ways to switch one defence off, for tests that show what it is for. The product has no switch for any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_lsp.core.verdict import TensorError
from kernel_lsp.ptx.executor import RunOptions
from kernel_lsp.verify.cpu import device as cpu
from kernel_lsp.verify.cpu import environment_variants as other_circumstances
from kernel_lsp.verify.cpu import run_files
from kernel_lsp.verify.model import cases
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.oracle import arrays, compare, judgement
from kernel_lsp.verify.oracle.compare_chunks import Total
from kernel_lsp.verify.probes import code_guided_cases as pointed_cases
from kernel_lsp.verify.probes import planned_cases
from kernel_lsp.verify.session import check_scheduler as looks
from kernel_lsp.verify.session.scalar_mutation import ScalarMutation

LENIENT = 1e-2
"""A tolerance as other harnesses have it, on the whole of an output."""


def switch_off(names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch these defences off until the test ends."""
    for name in names:
        SWITCHES[name](monkeypatch)


# --- below: one switch each


def _audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the PTX."""
    monkeypatch.setattr(looks, "audit", lambda *_: ())


def _state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables in device memory may be written."""
    _change_options(monkeypatch, may_write_variables=True)


def _orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and blocks always run first to last."""
    _change_options(monkeypatch, thread_order="forward")


def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the sizes of the task are tried."""
    monkeypatch.setattr(planned_cases, "reduced_sizes", lambda *_: [])
    monkeypatch.setattr(planned_cases, "least_sizes", lambda *_: None)
    monkeypatch.setattr(planned_cases, "wide_sizes", lambda *_: [])
    monkeypatch.setattr(planned_cases, "vast_sizes", lambda *_: [])
    monkeypatch.setattr(planned_cases, "several_blocks_sizes", lambda *_: [])
    monkeypatch.setattr(planned_cases, "index_cases", lambda *_: [])
    monkeypatch.setattr(planned_cases, "pointed_sizes", lambda *_: [])
    monkeypatch.setattr(pointed_cases, "compared_sizes", lambda *_: [])
    monkeypatch.setattr(pointed_cases, "sizes_beyond_exact_places", lambda *_: [])
    monkeypatch.setattr(pointed_cases, "sizes_beyond_narrow_places", lambda *_: [])
    monkeypatch.setattr(pointed_cases, "larger_sizes", lambda *_: [])
    monkeypatch.setattr(pointed_cases, "_long_sums", lambda *_: [])
    monkeypatch.setattr(planned_cases, "fresh_case", _captured_case)
    monkeypatch.setattr(looks, "left_undone", _nothing)
    monkeypatch.setattr(looks, "wrong_at_vast_sizes", _nothing)


async def _nothing(*_: object) -> None:
    """Finds nothing."""


def _families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only inputs as the task makes them."""
    monkeypatch.setattr(planned_cases, "full_cases", lambda *_: [])
    monkeypatch.setattr(planned_cases, "vast_cases", lambda *_: [])
    monkeypatch.setattr(planned_cases, "octave_cases", lambda *_: [])
    monkeypatch.setattr(planned_cases, "variant_cases", lambda *_: [])
    monkeypatch.setattr(pointed_cases, "variant_cases", lambda *_: [])
    monkeypatch.setattr(planned_cases, "index_cases", lambda *_: [])
    monkeypatch.setattr(pointed_cases, "pointed_values", lambda *_: ())
    monkeypatch.setattr(pointed_cases, "rounding_cases", lambda *_: [])


def _races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody notes who wrote what."""
    monkeypatch.setattr(run_files, "MAX_WATCHED_BYTES", -1)


def _interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread runs from one barrier or wait to the next."""
    monkeypatch.setattr(other_circumstances, "may_be_torn", lambda *_: False)


def _zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """No input holds a negative zero."""
    families = tuple(family for family in cases.FAMILIES if family != "negative_zeros")
    monkeypatch.setattr(cases, "FAMILIES", families)


def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds zeros."""

    def write_zeros(path: Path, n_bytes: int, byte: int = 0) -> None:
        arrays.write_poison(path, n_bytes, 0)

    monkeypatch.setattr(run_files, "write_poison", write_zeros)


def _patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers have one poison, which may be the answer."""
    monkeypatch.setattr(run_files, "EXACT_POISON_BYTES", (arrays.POISON_BYTE,))


def _initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody wrote may be read."""
    buffers = run_files.RunFiles.buffers

    def all_initialised(run: Any, initialised: Any, **options: Any) -> Any:
        return buffers(run, {tensor.name for tensor in run.bound.tensors}, **options)

    monkeypatch.setattr(run_files.RunFiles, "buffers", all_initialised)


def _nonfinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN is nowhere wrong."""

    def compare_finite(found: np.ndarray, expected: compare.Expectation, **options: Any) -> TensorError:
        values = np.where(np.isfinite(found), found, expected.reference)
        return compare.compare(values, expected, **options)

    def compare_stored_finite(found: np.ndarray, expected: compare.Expectation, **options: Any) -> TensorError:
        counts = np.isfinite(found) | arrays.poisoned_elements(found, expected.dtype)
        values = np.where(counts, found, expected.reference.astype(found.dtype))
        return compare.compare_stored(values, expected, **options)

    monkeypatch.setattr(judgement, "compare", compare_finite)
    monkeypatch.setattr(judgement, "compare_stored", compare_stored_finite)


def _choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch does not say which of equal elements it gives, any place is right."""
    monkeypatch.setattr(compare, "choice_total", lambda *_: Total())


def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lenient tolerance for all."""
    monkeypatch.setattr(judgement, "is_within_budget", lambda error: error.relative_l2 <= LENIENT)


def _coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether sampled blocks write their share."""
    monkeypatch.setattr(cpu, "MIN_COVERAGE", 0.0)


def _guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local arrays lie next to each other."""

    async def none(*_: Any) -> None:
        return None

    monkeypatch.setattr(looks, "guarded", none)


def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scalars are not mutated."""

    async def none(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(ScalarMutation, "mutated_tasks", none)


SWITCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "audit": _audit,
    "state": _state,
    "orders": _orders,
    "sizes": _sizes,
    "families": _families,
    "zeros": _zeros,
    "races": _races,
    "interruptions": _interruptions,
    "poison": _poison,
    "patterns": _patterns,
    "initialised": _initialised,
    "nonfinite": _nonfinite,
    "choices": _choices,
    "budget": _budget,
    "coverage": _coverage,
    "guards": _guards,
    "numbers": _numbers,
}


def _change_options(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    before = cpu.RunOptions
    monkeypatch.setattr(cpu, "RunOptions", lambda **given: replace(before(**given), **changes))


def _captured_case(task: Any, operation: Any, holds: Any, reduced: Any, seed: int) -> Case:
    sizes = tuple(sorted((symbol.name, symbol.captured) for symbol in task.symbols))
    return Case(operation, sizes, "normal", seed, "forward", is_captured=True)


assert RunOptions is cpu.RunOptions
