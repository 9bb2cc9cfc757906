"""Several GPUs of one machine: candidates are spread, and each verdict names its GPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session.session import Session
from tests.verify.gpu.fake_sessions import TEXT, install, settings
from tests.verify.gpu.harness import TWO


async def test_candidates_are_spread_over_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, TWO)
    async with Session(settings(tmp_path, "cuda:all")) as own:
        source = read_target("task.py::affine", tmp_path)
        verifier = await own.verifier(source, await own.capture(source, with_backward=False))
        candidates = [
            Candidate(text=f"{TEXT}// {number}\n", origin=Origin(proposer="user")) for number in range(verifier.n_slots)
        ]
        found = await asyncio.gather(*(verifier.verify(candidate, "rank") for candidate in candidates))
    assert all(verdict.is_correct for verdict in found), found
    assert verifier.n_slots >= 4
    assert verifier.device_name.startswith("2 x Fake GPU")
    assert {verdict.device.split(",")[0] for verdict in found} == {"Fake GPU (cuda:0)", "Fake GPU (cuda:1)"}
