"""The doctor's tools, as scripts on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.toolchain.tools import binaries as tools
from kernel_lsp.toolchain.tools.binaries import Tool, find_tools


@pytest.fixture
def bin_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(tools, "TOOLKIT_BIN_DIRECTORIES", ())
    return tmp_path


async def found(directory: Path, script: str) -> Tool:
    """The tool `ncu`, which is this shell script."""
    path = directory / "ncu"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    (tool,) = await find_tools(["ncu"])
    return tool


async def test_a_tool_that_is_not_there_has_no_path(bin_directory: Path) -> None:
    (tool,) = await find_tools(["ncu"])
    assert (tool.path, tool.version, tool.problem) == (None, "", "")


async def test_the_most_exact_version_is_taken(bin_directory: Path) -> None:
    tool = await found(bin_directory, "echo 'release 13.0, V13.0.88'")
    assert (tool.path, tool.version) == (bin_directory / "ncu", "13.0.88")


async def test_a_version_on_stderr_counts(bin_directory: Path) -> None:
    assert (await found(bin_directory, "echo version 1.2 >&2")).version == "1.2"


async def test_a_tool_that_fails_is_said_to(bin_directory: Path) -> None:
    assert (await found(bin_directory, "exit 3")).problem == "`--version` ended with 3"


async def test_a_tool_that_does_not_start_is_said_to(bin_directory: Path) -> None:
    path = bin_directory / "ncu"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    (tool,) = await find_tools(["ncu"])
    assert "does not start" in tool.problem


async def test_a_tool_that_hangs_is_given_up(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "VERSION_DEADLINE_S", 0.2)
    assert "no answer" in (await found(bin_directory, "sleep 60")).problem
