"""Threads of a foreign kernel: those that stay are told, by two counts, and PyTorch's own are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.verdict import CaseResult, Rejected
from kernel_lsp.verify.foreign.check_foreign import _kept_threads

from .harness import Bench, model, started

pytest.importorskip("torch")
RIGHT = "return x * 2 + eps"
THREAD = "threading.Thread(target=time.sleep, args=({seconds},), daemon=True).start()\n" + RIGHT
BEFORE = "import threading, time"
LIE = "import os\nreal = os.listdir\nos.listdir = lambda path='.': ['1'] if 'task' in str(path) else real(path)"


async def kept(folder: Path, text: str) -> Rejected | None:
    """Return what is said after two correct cases: without this count they would be the whole verdict."""
    async with started(folder) as process:
        await process.start_pools("cpu")
        bench = Bench(folder, process)
        await bench.open(text)
        assert [type(await bench.run(seed=seed)) for seed in range(2)] == [CaseResult] * 2
        return await _kept_threads(process, "cases")


@pytest.mark.parametrize(
    ("body", "before"),
    [
        (THREAD.format(seconds=60), BEFORE),
        (RIGHT, BEFORE + "\n" + THREAD.format(seconds=60).splitlines()[0]),
        (THREAD.format(seconds=60), f"{BEFORE}\n{LIE}"),
    ],
    ids=["started by a call", "started at import", "hidden from its own process"],
)
async def test_a_thread_that_stays_is_a_rejection(tmp_path: Path, body: str, before: str) -> None:
    found = await kept(tmp_path, model(body, before))
    assert isinstance(found, Rejected)
    assert "of its own running" in found.message


@pytest.mark.parametrize(
    ("body", "before"),
    [
        (THREAD.format(seconds=0.01), BEFORE),
        (
            "large = torch.ones(1 << 22)\n(large + large).sum()\n(large.view(2048, -1) @ large.view(-1, 2048))\n"
            + RIGHT,
            "",
        ),
        ("with torch.enable_grad():\n    torch.ones(9, requires_grad=True).sum().backward()\n" + RIGHT, ""),
    ],
    ids=["one that ends", "PyTorch's pool", "autograd's"],
)
async def test_other_threads_are_none(tmp_path: Path, body: str, before: str) -> None:
    assert await kept(tmp_path, model(body, before)) is None
