"""Clients that can do little, and users who are quick: nobody is left without what they asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.server.features.formatting import plain_text

from .client import VSCODE, initialized
from .fake_engine import requests_of, write_script
from .samples import KERNEL, SCALE, SCALE_LINE


async def test_a_kernel_that_is_saved_as_soon_as_it_is_opened_is_checked(tmp_path: Path) -> None:
    (path := tmp_path / "scale.cu").write_text(KERNEL)
    write_script(script := tmp_path / "script.json", check=[{"error": {"kind": "internal", "message": "a test's"}}])
    async with initialized(tmp_path, VSCODE, engine_script=script, trusted=True) as editor:
        uri = editor.open(path)
        editor.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
        await editor.until(lambda: [r for r in requests_of(script) if r["method"] == "check"])


async def test_a_client_without_code_action_literals_gets_commands(tmp_path: Path) -> None:
    (path := tmp_path / "scale.py").write_text(SCALE)
    async with initialized(tmp_path) as editor:
        assert editor.initialize_result["capabilities"]["codeActionProvider"] is True
        actions = await editor.at("codeAction", editor.open(path), SCALE_LINE)
        assert {"kernelLsp.optimize", "kernelLsp.optimizeWithBackward"} <= {action["command"] for action in actions}
        assert all(isinstance(action["title"], str) for action in actions)


async def test_a_client_that_shows_no_markdown_gets_none(tmp_path: Path) -> None:
    (path := tmp_path / "scale.py").write_text(SCALE)
    async with initialized(tmp_path, trusted=False) as editor:
        said: dict[str, Any] = await editor.at("hover", editor.open(path), SCALE_LINE, 5)
        assert said["contents"]["kind"] == "plaintext"
        assert said["contents"]["value"].startswith("scale with x: f32[64, 256]")


@pytest.mark.parametrize(
    ("markdown", "plain"),
    [
        ("**scale** with `x: f32[4]`", "scale with x: f32[4]"),
        ("12 us *(stale: the code has changed)*", "12 us (stale: the code has changed)"),
        ("*Estimate scale* (a code action)", "Estimate scale (a code action)"),
        ("| share | line |\n|--:|---|\n| 75% | x + 1 |", "share  line\n75%  x + 1"),
        ("a * b", "a * b"),
    ],
)
def test_marks_are_taken_out_and_nothing_else(markdown: str, plain: str) -> None:
    assert plain_text(markdown) == plain
