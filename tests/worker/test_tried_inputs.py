"""Examples of inputs are tried on fake tensors, and no tensor that they lead to is too large to compute."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.engine.inferred import candidate_inputs
from kernel_lsp.worker.task_facts import try_inputs

PAIRS = """\
import torch

def distances(a, b):
    return (a[:, None, :] - b[None, :, :]).pow(2).sum(-1)
"""


def test_examples_whose_pairs_of_rows_fill_a_memory_are_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "pairs.py").write_text(PAIRS)
    candidates = candidate_inputs(tmp_path / "pairs.py", "distances")
    assert candidates[0].texts == ("# kernel-lsp: a=f32[1024, 4096], b=f32[4096, 4096]",)
    sources = [candidate.source.model_dump(mode="json") for candidate in candidates]
    assert try_inputs({"sources": sources})["accepted"] > 0
