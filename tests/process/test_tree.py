"""Processes come and go while somebody reads the list of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernel_lsp.process import tree


def test_a_child_of_a_child_is_found() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        deadline = time.monotonic() + 20
        while not (found := tree.descendants(child.pid)) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.pid in tree.descendants(os.getpid())
        tree.kill_tree(child.pid)
    assert found


def test_a_process_that_ended_since_it_was_listed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, parent in ((7, 1), (8, 7), (9, 7)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 0 0")
    (tmp_path / "9" / "stat").unlink()
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(tree, "_PROC", tmp_path)
    assert set(tree.running_now()) == {7, 8, 9}
    assert tree.descendants(7) == (8,)


def test_a_list_that_breaks_off_is_no_error_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A glob over /proc raises for a process that ends between two of its steps."""

    def ended(self: Path, pattern: str) -> list[Path]:
        raise ProcessLookupError(pattern)

    monkeypatch.setattr(Path, "glob", ended)
    assert os.getpid() in tree.descendants(os.getppid())
