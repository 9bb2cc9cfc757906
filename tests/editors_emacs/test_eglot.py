"""Run a session in Emacs with Eglot, without a plugin of ours: diagnostics, code actions, an applied quick fix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.editors.installed import SESSION_S, STEP_S

EMACS = shutil.which("emacs")
SESSION = Path(__file__).with_name("session.el")
HAS_EGLOT = any(Path("/usr/share/emacs/site-lisp/elpa-src").glob("eglot*"))
SOFTMAX = """\
import torch


# kernel-lsp: x=f32[64, 256]
def total(x: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.softmax(x, dim=-1))
"""

pytestmark = [
    pytest.mark.skipif(EMACS is None or not HAS_EGLOT, reason="no Eglot here: apt-get install emacs-nox elpa-eglot"),
    pytest.mark.timeout(SESSION_S + 60),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the log of one session."""
    root = tmp_path_factory.mktemp("emacs")
    (root / "pyproject.toml").touch()
    (root / "total.py").write_text(SOFTMAX)
    environment = {
        **os.environ,
        "FILE": str(root / "total.py"),
        "SEEN": str(root / "seen.json"),
        "PYTHON": sys.executable,
        "DEADLINE_S": str(STEP_S),
        "HOME": str(root),
    }
    command = [str(EMACS), "--batch", "--load", str(SESSION)]
    ran = subprocess.run(command, env=environment, cwd=root, capture_output=True, timeout=SESSION_S, check=False)
    assert (root / "seen.json").is_file(), ran.stderr.decode(errors="replace")
    found: dict[str, Any] = json.loads((root / "seen.json").read_text())
    assert "problem" not in found, (found, ran.stderr.decode(errors="replace"))
    return found


def test_the_server_is_ours(seen: dict[str, Any]) -> None:
    assert seen["server"] == "kernel-lsp"


def test_diagnostics_arrive(seen: dict[str, Any]) -> None:
    assert any("softmax" in text for text in seen["diagnostics"])


def test_code_actions_are_offered(seen: dict[str, Any]) -> None:
    assert "Optimize to CUDA: total" in seen["actions"]


def test_a_quick_fix_is_applied(seen: dict[str, Any]) -> None:
    assert seen["fix"]
    assert seen["text"] != SOFTMAX
    assert "log_softmax" in seen["text"]
