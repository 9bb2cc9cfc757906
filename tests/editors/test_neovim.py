"""A whole session in real headless Neovims, through vim.lsp and without any plugin: `apt-get install neovim`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.editors.installed import SESSION_S, STEP_S, crowding, environment, programs
from tests.server.samples import CALL_LINE, NET_FORWARD_LINE, NET_LINE, SCALE, SCALE_LINE

NEOVIMS = programs("nvim")
SESSION = Path(__file__).with_name("session.lua")
CANCEL_S = 1.0
SLACK = 3.0
"""Maximum ratio to `CANCEL_S`, times the machine's load: Neovim polls every 50 ms."""

pytestmark = [
    pytest.mark.skipif(not NEOVIMS, reason="no Neovim here: apt-get install neovim"),
    pytest.mark.timeout(SESSION_S + 60),
]


@pytest.fixture(scope="module", params=NEOVIMS.values(), ids=NEOVIMS.keys())
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Log of the session. One session for all tests: each step builds on those before."""
    root = tmp_path_factory.mktemp("neovim")
    (root / ".kernel-lsp").mkdir()
    (root / "scale.py").write_text(SCALE)
    about = {
        "FILE": str(root / "scale.py"),
        "SEEN": str(root / "seen.json"),
        "SCALE_LINE": str(SCALE_LINE + 1),
        "NET_LINE": str(NET_LINE + 1),
        "DEADLINE_MS": str(STEP_S * 1000),
    }
    command = [request.param, "--headless", "--clean", "-n", "-c", f"luafile {SESSION}"]
    ran = subprocess.run(
        command, env={**environment(root), **about}, cwd=root, capture_output=True, timeout=SESSION_S, check=False
    )
    assert (root / "seen.json").is_file(), ran.stderr.decode(errors="replace")
    found: dict[str, Any] = json.loads((root / "seen.json").read_text())
    assert "problem" not in found, (found["problem"], found["messages"])
    return {**found, "crowding": crowding()}


def test_diagnostics_arrive(seen: dict[str, Any]) -> None:
    found = next(each for each in seen["diagnostics"] if each["code"] == "KL101")
    assert (found["source"], found["line"]) == ("kernel-lsp", CALL_LINE)


def test_a_code_action_edits_the_buffer(seen: dict[str, Any]) -> None:
    assert seen["with_shapes"].split("\n")[NET_FORWARD_LINE].startswith("    # kernel-lsp: x=f32[")


def test_a_run_shows_its_progress(seen: dict[str, Any]) -> None:
    assert seen["first_progress"]["kind"] == "begin"
    assert seen["first_progress"]["title"] == "Optimize scale"
    reports = [each["value"] for each in seen["progress"] if each["value"]["kind"] == "report"]
    assert any("best" in report["message"] and "cost $" in report["message"] for report in reports), reports
    assert seen["progress"][-1]["value"]["message"].startswith("done, best ")


def test_the_result_is_applied_as_new_files(seen: dict[str, Any]) -> None:
    assert "// op: scale(" in seen["kernel"]


def test_cancelling_the_progress_ends_the_run(seen: dict[str, Any]) -> None:
    assert seen["cancelled"] == "cancelled"
    assert seen["cancelled_s"] <= CANCEL_S * SLACK * seen["crowding"]
