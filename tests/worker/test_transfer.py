"""Large tensors in files and large inputs: the same bytes, whatever the number of pieces and threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_lsp.worker import failure, files
from kernel_lsp.worker.cases import families as drawing


@pytest.fixture(autouse=True, params=[3, 5], ids=["written", "mapped"])
def small_pieces(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Few threads write, many fill a mapping."""
    monkeypatch.setattr(files, "PIECE_BYTES", 1000)
    monkeypatch.setattr(files, "N_THREADS", request.param)
    monkeypatch.setattr(files, "LARGE_BYTES", 64)
    monkeypatch.setattr(drawing, "PIECE_ELEMENTS", 100)


@pytest.mark.parametrize("n", [16, 250, 251, 750, 4321])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_tensor_comes_back_as_it_was(tmp_path: Path, n: int, dtype: torch.dtype) -> None:
    tensor = (torch.randn(n) * 3).to(dtype)
    entry = files.write_tensor(str(tmp_path / "x.bin"), "x", tensor)
    assert os.path.getsize(tmp_path / "x.bin") == n * dtype.itemsize
    assert torch.equal(files.read_tensor(entry), tensor)


def test_a_strided_tensor_is_written_in_the_order_of_its_rows(tmp_path: Path) -> None:
    tensor = torch.arange(3000.0).view(30, 100).t()
    entry = files.write_tensor(str(tmp_path / "x.bin"), "x", tensor)
    assert torch.equal(files.read_tensor(entry), tensor)


@pytest.mark.parametrize("n", [0, 3, 900])
def test_a_longer_file_is_written_over(n: int, tmp_path: Path) -> None:
    files.write_tensor(str(tmp_path / "x.bin"), "x", torch.ones(1000))
    tensor = torch.randn(n)
    entry = files.write_tensor(str(tmp_path / "x.bin"), "x", tensor)
    assert torch.equal(files.read_tensor(entry), tensor)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    entry = files.write_tensor(str(tmp_path / "x.bin"), "x", torch.zeros(1000))
    with pytest.raises(failure.Failure, match="does not hold"):
        files.read_tensor({**entry, "shape": [1001]})


def test_a_full_disk_is_an_error_and_no_threads_stay() -> None:
    n_before = threading.active_count()
    with pytest.raises(failure.EnvironmentFailure, match="cannot write"):
        files.write_tensor("/dev/full", "x", torch.zeros(5000))
    assert threading.active_count() == n_before


def test_a_gpu_without_pinned_memory_goes_through_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        is_cuda = True

    empty = torch.empty

    def refusing(*size: int, pin_memory: bool = False, **rest: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("out of locked memory")
        return empty(*size, **rest)

    monkeypatch.setattr(torch, "empty", refusing)
    assert [buffer.numel() for buffer in files._buffers(OnGpu())] == [1000] * files.N_THREADS


@pytest.mark.parametrize("family", ["normal", "constant_rows", "one_hot", "small_integers", "large"])
def test_large_inputs_are_the_same_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    first = draw(family, (7, 9, 31))
    monkeypatch.setattr(drawing, "N_THREADS", 1)
    assert torch.equal(first, draw(family, (7, 9, 31)))
    assert not torch.equal(first, draw(family, (7, 9, 31), seed=4))


def test_large_inputs_keep_what_makes_their_family() -> None:
    rows = draw("constant_rows", (40, 50))
    assert torch.equal(rows, rows[:, :1].expand(40, 50))
    assert len(rows[:, 0].unique()) == 40
    assert torch.equal(draw("one_hot", (40, 50)).sum(-1), torch.ones(40))
    normal = draw("normal", (3000,))
    assert abs(float(normal.mean())) < 0.1
    assert 0.9 < float(normal.std()) < 1.1
    assert len(normal.unique()) > 2990  # no piece is drawn twice


def draw(family: str, shape: tuple[int, ...], seed: int = 3) -> torch.Tensor:
    return drawing.draw(family, shape, torch.float32, seed, "x")
