"""Check how many of PyTorch's threads references take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from kernel_lsp.worker import host

N_CORES = 16


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "loadavg"
    monkeypatch.setattr(host, "LOAD", str(path))
    monkeypatch.setattr(os, "cpu_count", lambda: N_CORES)
    return path


@pytest.mark.parametrize(("n_running", "n_idle"), [(1, 16), (4, 13), (17, 0), (40, -23)])
def test_idle_cores_are_those_on_which_nothing_else_runs(load: Path, n_running: int, n_idle: int) -> None:
    load.write_text(f"3.17 2.80 1.58 {n_running}/111 7314\n")
    assert host.n_idle_cores() == n_idle


@pytest.mark.parametrize("text", [None, "", "none of your business", "1 2 3 x/y 4"])
def test_all_cores_count_where_the_system_does_not_tell(load: Path, text: str | None) -> None:
    if text is not None:
        load.write_text(text)
    assert host.n_idle_cores() == N_CORES


@pytest.mark.parametrize(
    ("n_elements", "n_running", "n_threads"),
    [
        (host.FEW_ELEMENTS, 1, host.FEW_THREADS),
        (host.FEW_ELEMENTS + 2, 1, 8),
        (1 << 24, 12, 5),
        (1 << 10, 15, 2),
        (1 << 24, 30, 1),
    ],
)
def test_threads_are_as_many_as_idle_cores_and_few_for_few_elements(
    load: Path, n_elements: int, n_running: int, n_threads: int
) -> None:
    load.write_text(f"3.17 2.80 1.58 {n_running}/111 7314\n")
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        with host.threads_for({"x": [n_elements // 2, 2]}):
            assert torch.get_num_threads() == n_threads
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)
