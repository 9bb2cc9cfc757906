"""Check what a worker does while it imports: no collections, and bytecode that is made meanwhile."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_lsp.process import worker_client
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.worker.gpu import context_ahead
from kernel_lsp.worker.protocol import start_driver, without_collections

from .capturing import capture_text, tensor, with_worker

X = [tensor("x", 8, 16)]
DEADLINE_S = 60.0


@pytest.fixture
def collections() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_everything_is_afterwards(collections: None) -> None:
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_fails_inside_leaves_collections_on(collections: None) -> None:
    with pytest.raises(ImportError), without_collections():
        raise ImportError
    assert gc.isenabled()


def test_garbage_of_later_imports_is_collected(collections: None) -> None:
    with without_collections():
        pass
    n_frozen = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    with without_collections():
        pass
    assert gc.get_freeze_count() <= n_frozen
    assert len(kept) == 1000


def test_the_users_code_runs_with_collections() -> None:
    task = capture_text("import gc\nassert gc.isenabled()\ndef f(x):\n    return x.relu()", "f", inputs=X)
    assert task.forward.nodes


def test_a_worker_prepares_and_then_captures() -> None:
    async def prepare(worker: Worker) -> None:
        await worker.prepare_capture()
        assert worker.is_alive

    with_worker(prepare)
    assert capture_text("def f(x):\n    return x.relu()", "f", inputs=X).forward.nodes


def test_a_gpu_that_cannot_be_opened_ahead_is_told_when_it_is_needed() -> None:
    async def prepare(worker: Worker) -> None:
        await worker.open_context(99)
        await worker.prepare_capture()
        assert worker.is_alive

    with_worker(prepare)


def test_what_is_called_ahead_of_references_can_be_called() -> None:
    """Check that a GPU that cannot be opened is told later: a fault of these calls would never be."""
    context_ahead.call_first(torch.device("cpu"))


def test_a_machine_without_a_driver_is_no_problem() -> None:
    thread = start_driver()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


# --- bytecode


def environment_with(folder: Path, *compiled_parts: str) -> Path:
    """The interpreter of an environment in which these parts of torch have bytecode."""
    packages = folder / "lib" / "python3.12" / "site-packages"
    for part in worker_client.COMPILED_PARTS:
        (packages / part / "__pycache__" if part in compiled_parts else packages / part).mkdir(parents=True)
    return folder / "bin" / "python"


def test_an_environment_is_compiled_when_all_that_a_capture_imports_is(tmp_path: Path) -> None:
    assert worker_client._is_compiled(environment_with(tmp_path / "all", *worker_client.COMPILED_PARTS))
    assert worker_client._is_compiled(tmp_path / "none" / "bin" / "python")
    # A plain `import torch` of the user's has compiled a part.
    assert not worker_client._is_compiled(environment_with(tmp_path / "some", "torch", "sympy"))


async def test_bytecode_is_made_ahead_once(tmp_path: Path) -> None:
    python = environment_with(tmp_path / "environment")
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    packages = next(python.parent.parent.glob("lib/python3*/site-packages"))
    for part in worker_client.LATE_PARTS:
        (packages / part).mkdir(parents=True, exist_ok=True)
        (packages / part / "late.py").write_text("late = 1\n")
    (packages / "torch" / "early.py").write_text("early = 1\n")
    (packages / worker_client.LATE_PARTS[0] / "broken.py").write_text("this is no Python\n")
    worker = Worker(python, scratch=tmp_path / "scratch", cache=tmp_path / "cache")
    folder = tmp_path / "cache" / worker_client.WORKER_CACHE / "bytecode"
    await worker.compile_ahead()
    below = folder / packages.relative_to("/")
    assert {path.name.split(".")[0] for path in below.rglob("*.pyc")} == {"late"}
    for path in [*folder.rglob("*.pyc")]:
        path.unlink()
    await worker.compile_ahead()
    assert not [*folder.rglob("*.pyc")]
