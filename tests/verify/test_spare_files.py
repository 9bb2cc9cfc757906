"""Files that are written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.verify.gpu import gpu_kernel
from kernel_lsp.verify.gpu.gpu_kernel import SpareFiles


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernel, "LEAST_BYTES", 10)
    monkeypatch.setattr(gpu_kernel, "MAX_BYTES", 100)


def _folder(path: Path, **sizes: int) -> Path:
    path.mkdir()
    for name, size in sizes.items():
        (path / f"{name}.bin").write_bytes(bytes(size))
    return path


@pytest.mark.usefixtures("few_bytes")
def test_the_file_of_the_nearest_size_is_written_over(tmp_path: Path) -> None:
    spare = SpareFiles(tmp_path / "spare")
    judged = _folder(tmp_path / "case-1", small=12, large=60, tiny=3)
    inode = (judged / "large.bin").stat().st_ino
    spare.keep(judged)
    assert [path.name for path in judged.iterdir()] == ["tiny.bin"]
    spare.place(tmp_path / "case-2" / "out.bin", 50)
    assert (tmp_path / "case-2" / "out.bin").stat().st_ino == inode


@pytest.mark.usefixtures("few_bytes")
def test_no_more_is_kept_than_there_is_room_for(tmp_path: Path) -> None:
    spare = SpareFiles(tmp_path / "spare")
    spare.keep(_folder(tmp_path / "case-1", a=60, b=60))
    assert len(list((tmp_path / "spare").iterdir())) == len(list((tmp_path / "case-1").iterdir())) == 1


@pytest.mark.usefixtures("few_bytes")
def test_without_a_spare_file_or_for_few_bytes_nothing_is_placed(tmp_path: Path) -> None:
    spare = SpareFiles(tmp_path / "spare")
    spare.place(tmp_path / "out.bin", 50)
    spare.keep(_folder(tmp_path / "case-1", a=60))
    spare.place(tmp_path / "out.bin", 9)
    assert not (tmp_path / "out.bin").exists()
