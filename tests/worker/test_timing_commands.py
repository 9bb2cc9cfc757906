"""The commands that time PyTorch, in a real worker, by the host's clock."""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.worker.timing.stopwatch import CudaStopwatch

DEADLINE_S = 120.0
N = 4096
SOURCE = "def scale_reference(x, factor):\n    return (x * factor).relu()\n"


class SyncWorker:
    """One worker for all tests here: it starts with a second's import of torch."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._worker = Worker(Path(sys.executable))
        self._runner.run(self._worker.__aenter__())

    def ask(self, command: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._runner.run(self._worker.ask(command, body, deadline_s=DEADLINE_S))

    def close(self) -> None:
        self._runner.run(self._worker.__aexit__())
        self._runner.close()


@pytest.fixture(scope="module", name="worker")
def a_worker() -> Iterator[SyncWorker]:
    worker = SyncWorker()
    yield worker
    worker.close()


def entry(folder: Path, name: str, values: list[float]) -> dict[str, Any]:
    path = folder / f"{name}.bin"
    path.write_bytes(array("f", values).tobytes())
    return {"name": name, "path": str(path), "dtype": "f32", "shape": [len(values)]}


def request(folder: Path, **changes: Any) -> dict[str, Any]:
    reference = {
        "name": "scale",
        "source": SOURCE,
        "arguments": [{"tensor": "x"}, {"value": 2.0}],
        "direction": "forward",
        "gradients": [],
        **changes,
    }
    inputs = [entry(folder, "x", [float(i % 7 - 3) for i in range(N)])]
    if reference["direction"] == "backward":
        inputs.insert(0, entry(folder, "grad_out", [1.0] * N))
    return {
        "subject": "s",
        "device": "cpu",
        "mode": "eager",
        "reference": reference,
        "inputs": inputs,
        "written_bytes": 4 * N,
    }


def prepare(worker: SyncWorker, body: dict[str, Any]) -> dict[str, Any]:
    return worker.ask("prepare_baseline", body)


def block(worker: SyncWorker, subject: str = "s") -> dict[str, Any]:
    body = {"subject": subject, "n_samples": 4, "n_warm_samples": 2, "n_operator_calls": 5}
    return worker.ask("time_block", body)


def test_eager_is_prepared_and_says_how_it_runs(worker: SyncWorker, tmp_path: Path) -> None:
    found = prepare(worker, request(tmp_path))
    assert found["status"] == "ready"
    assert (found["tf32"], found["cudnn_benchmark"]) == ("off", "on")
    assert found["n_sets"] == 16
    assert found["time_us"] > 0


def test_a_compiler_is_imported_ahead(worker: SyncWorker, tmp_path: Path) -> None:
    assert worker.ask("prepare_compiler", {"device": "cpu"}) == {"status": "ready"}
    assert prepare(worker, request(tmp_path))["status"] == "ready"


def test_a_block_has_the_samples_that_were_asked_for(worker: SyncWorker, tmp_path: Path) -> None:
    prepare(worker, request(tmp_path))
    found = block(worker)
    assert (len(found["cold_us"]), len(found["warm_us"]), len(found["operator_us"])) == (4, 2, 1)
    assert min(found["cold_us"] + found["warm_us"] + found["operator_us"]) > 0


def test_a_backward_is_timed_without_its_forward(worker: SyncWorker, tmp_path: Path) -> None:
    """The forward sleeps; autograd's way back does not."""
    slow = SOURCE.replace("    return", "    import time; time.sleep(0.01)\n    return")
    found = prepare(worker, request(tmp_path, direction="backward", gradients=["x"], source=slow))
    assert found["status"] == "ready"
    assert max(block(worker)["cold_us"]) < 10_000


def test_what_pytorch_raises_is_an_answer(worker: SyncWorker, tmp_path: Path) -> None:
    found = prepare(worker, request(tmp_path, source="def scale_reference(x, factor):\n    return x @ x.T @ x\n"))
    assert found["status"] == "failed"
    assert "RuntimeError" in found["message"]


def test_zeros_are_not_timed(worker: SyncWorker, tmp_path: Path) -> None:
    body = request(tmp_path)
    body["inputs"] = [entry(tmp_path, "x", [0.0] * N)]
    with pytest.raises(KernelLspError, match="zero"):
        prepare(worker, body)


PEERS = """
def same(x, factor):
    return (factor * x).clamp(min=0)

def other(x, factor):
    return x * factor

def overwrites(x, factor):
    return x.mul_(factor).relu_()

def missing(x, factor):
    import a_library_that_nobody_has
"""


@pytest.mark.parametrize(
    ("name", "why"), [("same", ""), ("other", "differ"), ("overwrites", "overwrites"), ("missing", "ModuleNotFound")]
)
def test_a_peer_is_timed_where_it_computes_the_same(worker: SyncWorker, tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "peers.py").write_text(PEERS)
    found = prepare(worker, {**request(tmp_path), "mode": f"peer:{tmp_path / 'peers.py'}::{name}"})
    assert found["status"] == ("failed" if why else "ready")
    assert why in found.get("message", "")


def test_an_ended_subject_is_forgotten(worker: SyncWorker, tmp_path: Path) -> None:
    prepare(worker, request(tmp_path))
    worker.ask("end_timing", {"subject": "s"})
    with pytest.raises(KernelLspError, match="nothing called s"):
        block(worker)


def test_clocks_of_a_host_are_a_reason(worker: SyncWorker, tmp_path: Path) -> None:
    prepare(worker, request(tmp_path))
    assert "reason" in block(worker)["clocks"]


def test_a_processor_is_never_waited_for(worker: SyncWorker) -> None:
    answer = worker.ask("wait_until_idle", {"device": "cpu", "at_most_s": 60.0})
    assert (answer["status"], answer["is_idle"]) == ("ready", True)
    assert answer["waited_s"] < 1.0


@pytest.mark.parametrize(("launch_us", "is_idle"), [([10.0] * 5 + [5000.0] * 4, True), ([5000.0] * 9, False)])
def test_a_device_is_idle_when_most_small_kernels_start_at_once(
    launch_us: list[float], is_idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, launches = [0.0], iter(launch_us)
    stopwatch = CudaStopwatch.__new__(CudaStopwatch)
    stopwatch._written = torch.zeros(4)
    monkeypatch.setattr(CudaStopwatch, "wait", lambda _: None)

    def add(tensor: torch.Tensor, _: float) -> torch.Tensor:
        now_s[0] += next(launches) * 1e-6
        return tensor

    monkeypatch.setattr(torch.Tensor, "add_", add)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    assert stopwatch.is_idle() == is_idle
