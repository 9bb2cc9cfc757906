"""The Makefile and the installer, as far as they can be tried without installing anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
PHONY = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@needs_make
def test_help_lists_every_target() -> None:
    shown = run("make", "help").stdout
    assert PHONY is not None
    assert [name for name in PHONY[1].split() if f"make {name} " not in shown] == []


@needs_make
def test_make_alone_is_help() -> None:
    assert run("make").stdout == run("make", "help").stdout


def test_a_missing_python_is_named_with_the_package_to_install(tmp_path: Path) -> None:
    done = install(tmp_path, PYTHON="/nowhere/python3")
    assert done.returncode == 2
    assert "tried /nowhere/python3" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    done = install(tmp_path, PYTHON=str(fake_python(tmp_path, "exit 1")))
    assert done.returncode == 2
    assert "Python 3.11 or newer was not found" in done.stderr


def test_a_python_without_venv_names_its_package(tmp_path: Path) -> None:
    python = fake_python(tmp_path, 'case "$2" in *ensurepip*) exit 1;; *print*) echo python3.12-venv;; esac')
    done = install(tmp_path, PYTHON=str(python))
    assert done.returncode == 2
    assert "sudo apt-get install python3.12-venv" in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "scripts/install.sh",
        "scripts/install_editors.sh",
        "scripts/install_newer_editors.sh",
        "scripts/take_screenshots.sh",
        ".ci/run",
    ],
)
def test_a_script_parses(script: str) -> None:
    shell = (ROOT / script).read_text().splitlines()[0].removeprefix("#!").split()
    assert run(*shell, "-n", script).returncode == 0


def test_the_ci_script_can_be_executed() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def fake_python(folder: Path, body: str) -> Path:
    """A program that answers `-c CODE` as `body` says."""
    python = folder / "fake-python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return python


def install(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return run("sh", "scripts/install.sh", str(folder / "venv"), **settings)


def run(*command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        command, cwd=ROOT, env={**environment, **settings}, capture_output=True, text=True, timeout=60, check=False
    )
