"""Buffers of timed calls: several small sets, one large one, and an operator's call on the buffers of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_lsp.worker.gpu.run import BoundRun, _step_of
from kernel_lsp.worker.timing import subject
from kernel_lsp.worker.timing.baseline import reference_subject
from kernel_lsp.worker.timing.candidate import operator_call
from kernel_lsp.worker.timing.rounds import SUBJECTS, prepare_probe


def test_large_buffers_are_one_set() -> None:
    assert subject.n_affordable_sets(1 << 20, None) > 2
    assert subject.n_affordable_sets(3 << 30, None) == 2
    assert subject.n_affordable_sets(subject.ONE_SET_BYTES, None) == 1


def test_a_run_that_shares_buffers_replaces_its_own_tensors_alone() -> None:
    no_kernel: Any = None  # a fill needs none
    run = object.__new__(BoundRun)
    run.tensors = {"out": torch.zeros(3)}
    run._operation = {"steps": [{"kind": "fill", "tensor": "out", "value": 2.0}]}
    run.steps = [_step_of(step, no_kernel) for step in run._operation["steps"]]
    shared = run.sharing()
    assert shared.tensors["out"] is run.tensors["out"]
    shared.tensors["out"] = torch.zeros(3)
    shared()
    assert shared.tensors["out"].tolist() == [2.0] * 3
    assert run.tensors["out"].tolist() == [0.0] * 3


def test_a_run_copies_its_own_inputs_once_the_given_ones_are_dropped() -> None:
    run, given = object.__new__(BoundRun), torch.ones(3)
    run._roles, run._own, run._inputs = {"x": "input", "out": "output"}, {"x": given.clone()}, {"x": given}
    run.drop_given_inputs()
    assert run._inputs == {"x": run._own["x"]}


def test_an_operator_call_keeps_no_results() -> None:
    run = object.__new__(BoundRun)
    run.tensors = {"x": torch.zeros(3), "out": torch.zeros(3)}
    operation = {
        "tensors": [{"name": "x", "role": "input"}, {"name": "out", "role": "output"}],
        "steps": [{"kind": "fill", "tensor": "out", "value": 2.0}],
    }
    run._operation, run._candidate = operation, None  # type: ignore[assignment]  # a fill alone needs no kernel
    run.steps = [lambda of: seen.append(of.tensors["out"])]
    seen: list[torch.Tensor] = []
    before = run.tensors["out"]
    operator_call(run, operation)()
    assert seen[0] is not before
    assert run.tensors["out"] is before


SOURCE = "def double_reference(x):\n    return 2 * x\n"
REFERENCE = {
    "name": "double",
    "source": SOURCE,
    "arguments": [{"tensor": "x"}],
    "direction": "forward",
    "gradients": [],
}


def test_a_baseline_with_large_results_has_one_set_of_inputs() -> None:
    inputs = {"x": torch.ones(4)}
    small = reference_subject(REFERENCE, inputs, "eager", None, written_bytes=16)
    large = reference_subject(REFERENCE, inputs, "eager", None, written_bytes=subject.ONE_SET_BYTES)
    assert (small.is_large, large.is_large, large.n_sets) == (False, True, 1)
    assert small.n_sets > 1


def test_a_large_subject_leaves_a_graph_where_the_host_keeps_up() -> None:
    large = reference_subject(REFERENCE, {"x": torch.ones(4)}, "eager", None, written_bytes=subject.ONE_SET_BYTES)
    large.own_enqueue_us = 50.0
    assert large.prefers_stream
    large.own_enqueue_us = subject.MAX_SLEEP_US
    assert not large.prefers_stream


def test_what_the_first_call_tried_is_given_back_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[str]()
    monkeypatch.setattr(subject, "stopwatch_of", lambda device: subject.HostStopwatch())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("given back"))
    on_gpu = subject.Subject(lambda place: lambda: done.append("call"), lambda place: lambda: None, 2, device=0)
    subject.warm_up(on_gpu)
    assert done[:3] == ["call", "given back", "call"]
    assert done.count("given back") == 1


RECORDED = """
def double_reference(x):
    x.is_recorded = torch.is_grad_enabled() and x.requires_grad
    return 2 * x
"""


@pytest.mark.parametrize("mode", ["eager", "peer:{peers}::double"])
@pytest.mark.parametrize("gradients", [[], ["x"]])
def test_a_forward_does_the_work_of_a_training_step(tmp_path: Path, mode: str, gradients: list[str]) -> None:
    """Liger's losses compute their gradients in the forward, where an input requires one."""
    (tmp_path / "peers.py").write_text(f"import torch\n{RECORDED}".replace("double_reference", "double"))
    inputs = {"x": torch.ones(4)}
    request = {**REFERENCE, "source": RECORDED, "gradients": gradients}
    found = reference_subject(request, inputs, mode.format(peers=tmp_path / "peers.py"), None, written_bytes=16)
    with torch.no_grad():
        found.arm(0)()
    assert inputs["x"].is_recorded is bool(gradients)  # type: ignore[attr-defined]  # set by the reference


def test_a_loss_has_the_gradient_of_a_training_step() -> None:
    """Libraries scale their gradients where the loss's is not one."""
    source = (
        "def double_reference(x):\n    out = (2 * x).sum()\n"
        "    out.register_hook(lambda gradient: setattr(x, 'gradient', float(gradient)))\n    return out\n"
    )
    inputs = {"x": torch.ones(4), "grad_out": torch.tensor(3.0)}
    request = {**REFERENCE, "source": source, "direction": "backward", "gradients": ["x"]}
    reference_subject(request, inputs, "eager", None, written_bytes=16).arm(0)()
    assert inputs["x"].gradient == 1.0  # type: ignore[attr-defined]  # set by the hook


def test_a_process_whose_generator_raises_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a capture that failed on an H200: "Offset increment outside graph capture encountered unexpectedly"."""

    def refused(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    monkeypatch.setattr(torch, "rand", refused)
    assert prepare_probe({"subject": "probe", "device": "cpu", "method": subject.STREAM})["status"] == "ready"
    del SUBJECTS["probe"]
