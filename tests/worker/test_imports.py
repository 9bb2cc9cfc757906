"""Check what a worker does while it imports: no collections, and bytecode that others make a step ahead."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_lsp.process import worker_client
from kernel_lsp.process.worker_client import WORKER_PROGRAM, Worker
from kernel_lsp.worker.gpu import context_ahead
from kernel_lsp.worker.protocol import start_driver, without_collections

from .capturing import capture_text, tensor, with_worker

X = [tensor("x", 8, 16)]
DEADLINE_S = 60.0
FILES = {
    "torch/__init__.py": "from . import _dynamo\nfrom torch.later import thing\n\n\ndef f():\n    import torch.lazy\n",
    "torch/_dynamo/__init__.py": "from ..utils.deep import helper as other\nimport torch.broken\n",
    "torch/utils/__init__.py": "",
    "torch/utils/deep.py": "helper = 1\n",
    "torch/later/__init__.py": "from . import thing\n",
    "torch/later/thing.py": "import nothing_at_all\n",
    "torch/broken.py": "this is no Python\n",
    "torch/lazy.py": "",
}


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


def compiled(folder: Path) -> set[str]:
    """Return what the program `bytecode` compiles of a torch that is made of `FILES`, by path without the ending."""
    for name, text in FILES.items():
        (folder / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "packages" / name).write_text(text)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": str(folder / "packages"),
        "PYTHONPYCACHEPREFIX": str(folder / "cache"),
    }
    command = [sys.executable, str(WORKER_PROGRAM), "bytecode", str(folder / "complete")]
    subprocess.run(command, env=environment, check=True, timeout=DEADLINE_S)
    below = folder / "cache" / (folder / "packages").relative_to("/")
    return {str(path.relative_to(below)).split(".")[0] for path in below.rglob("*.pyc")}


def test_what_torch_imports_is_compiled_and_what_functions_import_is_not(tmp_path: Path) -> None:
    found = compiled(tmp_path)
    assert found == {
        *("torch/__init__", "torch/_dynamo/__init__", "torch/utils/__init__", "torch/utils/deep"),
        *("torch/later/__init__", "torch/later/thing"),
    }


def test_a_file_that_cannot_be_compiled_hinders_no_other_and_the_end_is_marked(tmp_path: Path) -> None:
    assert "torch/broken" not in compiled(tmp_path)
    assert (tmp_path / "complete").exists()


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


async def test_bytecode_is_made_ahead_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "_is_compiled", lambda _: False)
    program = tmp_path / "program.py"
    program.write_text("import sys\nopen(sys.argv[2], 'x').write(sys.argv[1])\n")
    worker = Worker(Path(sys.executable), scratch=tmp_path / "scratch", cache=tmp_path / "cache", program=program)
    marker = tmp_path / "cache" / worker_client.WORKER_CACHE / "bytecode" / worker_client.COMPILED_MARKER
    marker.parent.mkdir(parents=True)
    await worker.compile_ahead()
    assert marker.read_text() == "bytecode"
    marker.write_text("done before")
    await worker.compile_ahead()
    assert marker.read_text() == "done before"
