"""Decisions that change which kernels there are: splitting long reductions, and how contractions are done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel_lsp.generate.knobs import Choices
from kernel_lsp.generate.lowering.table import LoweredGraph
from kernel_lsp.generate.tensor import Definition, Tensor


@dataclass(frozen=True)
class Structure:
    """The tensors of an operation with definitions that override their own."""

    tensors: tuple[Tensor, ...]
    definitions: Mapping[Tensor, Definition]


def structure_of(
    lowered: LoweredGraph,
    results: Mapping[str, Tensor],
    choices: Choices,
    captured: Mapping[str, int],
    n_multiprocessors: int,
    operation: str,
) -> Structure:
    """The structure that the schedule asks for."""
    return Structure(tuple(lowered.builder.tensors), {})
