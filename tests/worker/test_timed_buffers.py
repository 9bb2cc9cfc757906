"""Buffers of timed calls: several small sets, one large one, and an operator's call on the buffers of the first."""

from __future__ import annotations

import torch

from kernel_lsp.worker.gpu.run import BoundRun
from kernel_lsp.worker.timing import subject


def test_large_buffers_are_one_set() -> None:
    assert subject.n_affordable_sets(1 << 20, None) > 2
    assert subject.n_affordable_sets(3 << 30, None) == 2
    assert subject.n_affordable_sets(subject.ONE_SET_BYTES, None) == 1


def test_a_run_that_shares_buffers_replaces_its_own_tensors_alone() -> None:
    run = object.__new__(BoundRun)
    run.tensors = {"out": torch.zeros(3)}
    run._operation = {"steps": [{"kind": "fill", "tensor": "out", "value": 2.0}]}
    run._candidate = None  # type: ignore[assignment]
    run._steps = [run._step(step, run._candidate) for step in run._operation["steps"]]
    shared = run.sharing()
    assert shared.tensors["out"] is run.tensors["out"]
    shared.tensors["out"] = torch.zeros(3)
    shared()
    assert shared.tensors["out"].tolist() == [2.0] * 3
    assert run.tensors["out"].tolist() == [0.0] * 3
