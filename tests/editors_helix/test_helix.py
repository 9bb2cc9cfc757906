"""A session in a real Helix, which has no plugins: its own client with the configuration of docs/editors/helix.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.editors.installed import SESSION_S, STEP_S, environment_of_the_server, programs

from .terminal import Terminal

CONFIGURATION = (Path(__file__).with_name("languages.toml"), Path(__file__).with_name("config.toml"))
PAGE = Path(__file__).parent.parent.parent / "docs" / "editors" / "helix.md"
HELIXES = programs("hx")
SETTINGS = '[tool.kernel-lsp]\ndevice = "cpu"\ngenerations = 1\nproposals = 2\n'
SOFTMAX = """\
import torch


# kernel-lsp: x=f32[64, 256]
def total(x: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.softmax(x, dim=-1))
"""
LINE = 6
ESCAPE, ENTER, NEXT = "\x1b", "\r", "\t"
PROGRESS = re.compile(r"\] \d+% ")

needs_helix = pytest.mark.skipif(not HELIXES, reason="no Helix here: scripts/install_newer_editors.sh, or install hx")
pytestmark = pytest.mark.timeout(SESSION_S)


@pytest.fixture(params=HELIXES.values(), ids=HELIXES.keys())
def helix(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """Return Helix with the file open and its finding shown."""
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    (tmp_path / "total.py").write_text(SOFTMAX)
    configuration = tmp_path / "xdg_config_home" / "helix"
    configuration.mkdir(parents=True)
    for file in CONFIGURATION:
        shutil.copy(file, configuration)
    terminal = Terminal([request.param, "total.py"], environment_of_the_server(tmp_path), tmp_path)
    try:
        terminal.until("the file", lambda screen: "torch.softmax" in screen, STEP_S)
        terminal.until("a mark at the line", lambda screen: f"●   {LINE} " in screen, STEP_S)
        yield terminal
    finally:
        terminal.close()


@needs_helix
def test_a_finding_is_listed_with_its_code(helix: Terminal) -> None:
    helix.type(" d")
    helix.until("the finding in the picker", lambda screen: "KL132" in screen and "log_soft" in screen, STEP_S)


@needs_helix
def test_a_quick_fix_is_applied_from_the_menu(helix: Terminal, tmp_path: Path) -> None:
    choose_action(helix, "Replace with")
    helix.until("the fix in the text", lambda screen: "torch.log_softmax(x, dim=-1)" in screen, STEP_S)
    helix.type(f":write{ENTER}")
    helix.until("a saved file", lambda _: "log_softmax" in saved(tmp_path / "total.py"), STEP_S)


@needs_helix
def test_a_target_is_optimized_from_the_menu_and_ends_with_advice(helix: Terminal, tmp_path: Path) -> None:
    choose_action(helix, "Optimize to CUDA: total")
    helix.until("progress", lambda screen: PROGRESS.search(screen) is not None, STEP_S)
    ended = helix.until("the result", lambda screen: "kernel-lsp: total" in screen, STEP_S)
    if "keep " in ended:
        assert not (tmp_path / "kernels").exists()
        return
    assert "4 new files in kernels (4 unsaved: save all)" in ended
    helix.type(f":write-all{ENTER}")
    kernels = tmp_path / "kernels"
    helix.until("a saved kernel", lambda _: "// op: total(" in saved(kernels / "total.cu"), STEP_S)
    helix.until("a saved operator", lambda _: "def total(" in saved(kernels / "total.py"), STEP_S)


def test_the_page_shows_the_configuration_that_was_run() -> None:
    page = PAGE.read_text()
    assert all(file.read_text() in page for file in CONFIGURATION)


def saved(file: Path) -> str:
    """Return a file's text; empty while there is none: Helix renames the old file before it writes the new one."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def choose_action(helix: Terminal, title: str) -> None:
    """Open the menu at the line of the finding, and choose the action whose title starts with `title`."""
    helix.type(f":{LINE}{ENTER}")
    helix.type(" a")
    screen = helix.until(f"the menu with {title!r}", lambda screen: f"  {title}" in screen, STEP_S)
    lines = screen.splitlines()
    first = next(index for index, line in enumerate(lines) if "Replace with" in line)
    here = next(index for index, line in enumerate(lines) if f"  {title}" in line)
    helix.type(NEXT * (here - first) + ENTER)  # the first one is chosen already
