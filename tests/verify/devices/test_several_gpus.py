"""Several GPUs of one machine: each has a process of its own, candidates are spread, and each verdict names its GPU."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import EnvironmentProblem, SettingError
from kernel_lsp.process.tree import is_running
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session import several_gpus
from kernel_lsp.verify.session.pipeline import N_SLOTS
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.several_gpus import SpreadVerifier
from tests.verify.gpu.fake_sessions import TEXT, install, settings
from tests.verify.gpu.harness import TWO

PROGRAM = Path(__file__).resolve().parent.parent / "gpu" / "fake_gpu_process.py"
GPUS = {"Fake GPU (cuda:0)", "Fake GPU (cuda:1)"}
WRONG = TEXT.replace("2 * x[i] + 1", "2 * x[i]")


@asynccontextmanager
async def spread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SpreadVerifier]:
    install(folder, monkeypatch, TWO)
    monkeypatch.setattr(several_gpus, "PROGRAM", (sys.executable, str(PROGRAM), str(folder)))
    async with Session(settings(folder, "cuda:all")) as own:
        source = read_target("task.py::affine", folder)
        verifier = await own.verifier(source, await own.capture(source, with_backward=False))
        assert isinstance(verifier, SpreadVerifier)
        yield verifier


def candidates(n: int, text: str = TEXT) -> list[Candidate]:
    return [Candidate(text=f"{text}// {number}\n", origin=Origin(proposer="user")) for number in range(n)]


def named(found: list[Verdict]) -> list[str]:
    return [verdict.device.split(",")[0] for verdict in found]


async def test_candidates_are_spread_over_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone starts no other process."""
    async with spread(tmp_path, monkeypatch) as verifier:
        alone = await verifier.verify(candidates(1, f"{TEXT}// alone ")[0], "rank")
        assert verifier._others[0]._serving is None
        await verifier.open_all()
        pid = verifier._others[0]._channel.pid
        found = await asyncio.gather(*(verifier.verify(candidate, "rank") for candidate in candidates(4)))
        wrong = await asyncio.gather(*(verifier.verify(candidate, "rank") for candidate in candidates(2, WRONG)))
    assert named([alone]) == ["Fake GPU (cuda:0)"]
    assert all(verdict.is_correct for verdict in found), found
    assert [named(found).count(name) for name in sorted(GPUS)] == [2, 2]
    assert [verdict.outcome.kind for verdict in wrong] == ["mismatch", "mismatch"], "the executor screens on both"
    assert verifier.n_slots == 2 * N_SLOTS
    assert verifier.device_name.startswith("2 x Fake GPU,")
    assert not is_running(pid)


async def test_a_process_that_ends_loses_no_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with spread(tmp_path, monkeypatch) as verifier:
        await verifier.open_all()
        other = verifier._others[0]
        verifying = [asyncio.create_task(verifier.verify(candidate, "rank")) for candidate in candidates(2)]
        while not other._waiting:
            await asyncio.sleep(0.01)
        os.kill(other._channel.pid, signal.SIGKILL)
        found = await asyncio.gather(*verifying)
    assert named(found) == ["Fake GPU (cuda:0)"] * 2
    assert all(verdict.is_correct for verdict in found)
    assert [loss.startswith("the process of cuda:1 ended") for loss in verifier.losses] == [True]


async def test_a_process_that_does_not_start_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with spread(tmp_path, monkeypatch) as verifier:
        monkeypatch.setattr(several_gpus, "PROGRAM", (sys.executable, "-c", "raise SystemExit('no such GPU')"))
        with pytest.raises(EnvironmentProblem, match="the process of cuda:1 ended: no such GPU"):
            await verifier.open_all()
        with pytest.raises(EnvironmentProblem, match="no such GPU"):
            await verifier.verify(candidates(1)[0], "rank")


def test_gpus_of_several_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="needs GPUs of one kind: A, B"):
        Session(settings(tmp_path, "cuda:all"))._refuse_several_kinds({"A", "B"})
