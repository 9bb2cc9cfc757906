"""Check what a person sees: short texts on a terminal, plain lines where there is none."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.run.optimize import start_request
from tests.cli.commands import DEADLINE_S, SCALE, command, environment, run

SCREEN_LINES = 24
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def on_terminal(folder: Path, *arguments: str) -> str:
    """Return what a command writes to a terminal, without its control sequences."""
    ours, theirs = pty.openpty()
    environ = {**environment(folder), "TERM": "xterm", "COLUMNS": "100", "LINES": str(SCREEN_LINES)}
    with subprocess.Popen(
        command(*arguments), cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as ran:
        os.close(theirs)
        written = b""
        try:
            while read := os.read(ours, 65536):
                written += read
        except OSError:  # the last process has closed the terminal
            pass
        ran.wait(DEADLINE_S)
    os.close(ours)
    return _CONTROL.sub("", written.decode())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with one run that has not ended."""
    (tmp_path / "model.py").write_text(SCALE)
    (tmp_path / ".kernel-lsp").mkdir()
    request = start_request(tmp_path, "model.py::scale", False, {}).request
    with Archive(tmp_path) as archive:
        archive.start_run("model.py::scale", request.model_dump(mode="json"))
    return tmp_path


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_report_is_rendered_and_no_raw_markdown(workspace: Path, is_terminal: bool) -> None:
    shown = on_terminal(workspace, "report", "last") if is_terminal else run(workspace, "report", "last").stdout
    assert "model.py::scale" in shown
    assert not re.search(r"# |\*\*|\|-", shown)


def test_an_estimate_has_the_table_of_the_hover_and_says_what_it_waits_for(workspace: Path) -> None:
    ran = run(workspace, "estimate", "model.py::scale")
    assert ran.stderr == "capturing model.py::scale\n"
    assert re.search(r"^ +100%\s+[\d.]+ us +7  return torch\.relu\(x \* weight \+ 1\.0\)$", ran.stdout, re.MULTILINE)
    assert re.search(r"^  compile +[\d.]+ us \[", ran.stdout, re.MULTILINE)
    roofline = r"^  roofline +[\d.]+ us: the speed of light, an empty kernel takes as long$"
    assert re.search(roofline, ran.stdout, re.MULTILINE)


def test_a_line_of_another_file_is_shown_with_that_file(workspace: Path) -> None:
    (workspace / "layers").mkdir()
    (workspace / "layers" / "gate.py").write_text("import torch\n\n\ndef gate(x):\n    return torch.sigmoid(x)\n")
    called = SCALE.replace("import torch\n", "import torch\nfrom layers.gate import gate\n").replace(
        "torch.relu", "gate"
    )
    (workspace / "called.py").write_text(called)
    shown = run(workspace, "estimate", "called.py::scale").stdout
    assert re.search(r" us +layers/gate\.py:5  return torch\.sigmoid\(x\)$", shown, re.MULTILINE)
    assert re.search(r" us +8  return gate\(x \* weight \+ 1\.0\)$", shown, re.MULTILINE)


def test_optimize_shows_a_spinner_with_the_stage_on_a_terminal_alone(workspace: Path) -> None:
    arguments = ("optimize", "model.py::scale", "--python", "/none")
    assert "starting" in on_terminal(workspace, *arguments)
    assert "starting" not in run(workspace, *arguments).stderr


def test_doctor_is_one_screen_with_details_on_demand(workspace: Path) -> None:
    ran, all_of_it = run(workspace, "doctor"), run(workspace, "doctor", "--verbose")
    assert len(ran.stdout.splitlines()) <= SCREEN_LINES
    assert "  for: " not in ran.stdout
    assert "  for: " in all_of_it.stdout


BUSY = """
import time
from kernel_lsp.cli import console

@console.command
async def main():
    print("busy", flush=True)
    while True:
        time.sleep(0.01)  # work without an `await`

raise SystemExit(main())
"""


def test_one_interrupt_ends_work_that_does_not_let_the_event_loop_run() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline() == b"busy\n"
        ran.send_signal(signal.SIGINT)
        try:
            _, written = ran.communicate(timeout=60)
        finally:
            ran.kill()
    assert (ran.returncode, written) == (130, b"")
