"""Play a session in a headless Neovim with the plugin."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.editors.installed import SESSION_S, STEP_S, environment_of_the_server, programs

HERE = Path(__file__).parent
PLUGIN = HERE.parent.parent / "nvim-client"
SETTINGS = '[tool.kernel-lsp]\ndevice = "cpu"\ngenerations = 1\nproposals = 2\n'
NEOVIMS = programs("nvim")
MARKS = [
    pytest.mark.skipif(not NEOVIMS, reason="no Neovim here: apt-get install neovim"),
    pytest.mark.timeout(SESSION_S + 60),
]


def workspace(root: Path) -> Path:
    """Make a folder a workspace with the plugin beside its files; help tags are written into that copy."""
    (root / ".kernel-lsp").mkdir()
    (root / "pyproject.toml").write_text(SETTINGS)
    shutil.copytree(PLUGIN, root / "plugin")
    return root


def play(neovim: str, session: str, root: Path, **about: str) -> dict[str, Any]:
    """Return what the session saw."""
    seen = root / "seen.json"
    environment = {
        **environment_of_the_server(root),
        "SEEN": str(seen),
        "PLUGIN": str(root / "plugin"),
        "STEPS": str(HERE / "steps.lua"),
        "DEADLINE_MS": str(STEP_S * 1000),
        **about,
    }
    start = ["--headless", "--clean", "-n", "--cmd", f"set rtp^={root / 'plugin'}", "-c", f"luafile {HERE / session}"]
    ran = subprocess.run(
        [neovim, *start], env=environment, cwd=root, capture_output=True, timeout=SESSION_S, check=False
    )
    assert seen.is_file(), ran.stderr.decode(errors="replace")
    found: dict[str, Any] = json.loads(seen.read_text())
    assert "problem" not in found, (found["problem"], found["messages"])
    return {**found, "folder": root}
