"""Check which facts of a torch are kept, and when they no longer count."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel_lsp.toolchain.extension.facts import ExtensionFacts, KeptFacts

PYTHON = Path("/venv/bin/python")


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """An installation, as far as it is looked at."""
    root = tmp_path / "site-packages" / "torch"
    (root / "include").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "version.py").write_text("__version__ = '2.11.0'\n")
    return root


def facts_of(torch: Path) -> ExtensionFacts:
    return ExtensionFacts(
        torch_version="2.11.0",
        cuda_version="13.0",
        includes=(torch / "include",),
        libraries=("c10",),
        library_directories=(torch / "lib",),
        cxx11_abi=1,
    )


def kept(torch: Path, python: Path = PYTHON) -> KeptFacts:
    return KeptFacts(torch.parent.parent / "cache", python, [torch.parent.parent / "none", torch.parent])


def test_what_was_kept_is_found_again(torch: Path) -> None:
    assert kept(torch).find() is None
    kept(torch).keep(facts_of(torch))
    assert kept(torch).find() == facts_of(torch)


def test_another_interpreter_has_a_torch_of_its_own(torch: Path) -> None:
    kept(torch).keep(facts_of(torch))
    assert kept(torch, Path("/other/bin/python")).find() is None


@pytest.mark.parametrize(
    "text", ["__version__ = '2.12.0'\n", "__version__ = '2.11.0'\n"], ids=["newer", "installed anew"]
)
def test_another_torch_is_asked(torch: Path, text: str) -> None:
    kept(torch).keep(facts_of(torch))
    (torch / "version.py").write_text(text)
    os.utime(torch / "version.py", (1, 1))
    assert kept(torch).find() is None


def test_facts_that_name_what_is_gone_do_not_count(torch: Path) -> None:
    kept(torch).keep(facts_of(torch))
    (torch / "lib").rmdir()
    assert kept(torch).find() is None


def test_half_a_file_does_not_count(torch: Path) -> None:
    kept(torch).keep(facts_of(torch))
    (path,) = (torch.parent.parent / "cache").rglob("*.json")
    path.write_text(path.read_text()[:40])
    assert kept(torch).find() is None


def test_without_torch_or_room_nothing_is_kept_and_nothing_breaks(torch: Path) -> None:
    (torch.parent.parent / "cache").write_text("a file where the folder would be")
    kept(torch).keep(facts_of(torch))
    assert kept(torch).find() is None
    (torch / "version.py").unlink()
    kept(torch).keep(facts_of(torch))
    assert kept(torch).find() is None
