"""A pyproject.toml that changes while files are open takes effect by itself, for clients that watch and that do not."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from .client import NEOVIM, VSCODE, Client, initialized
from .samples import SCALE, SCALE_LINE

CAPTURE_S = 180.0
"""The first estimate imports torch, on whatever machine this is."""
AGAIN_S = 10.0
"""Far less than a capture takes on a busy machine, and far more than what is kept takes to be read."""
BEING_ESTIMATED = "Estimating"


def choose_gpu(folder: Path, name: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.kernel-lsp]\ntarget-gpu = '{name}'\n")


async def hovered(editor: Client, uri: str) -> str:
    found = await editor.at("hover", uri, SCALE_LINE, 4)
    return str(found["contents"]["value"])


async def until_estimated(editor: Client, uri: str, gpu: str, deadline_s: float) -> float:
    """Return how long after a refresh the hover has the number for this GPU. It is asked for only after
    that: nothing is made because someone asked."""
    started = time.monotonic()
    n_heard = n_refreshes(editor)
    while True:
        await editor.until(partial(has_refreshed, editor, n_heard), deadline_s)
        n_heard = n_refreshes(editor)
        told = await hovered(editor, uri)
        if f"estimated on {gpu}" in told:
            return time.monotonic() - started
        assert time.monotonic() - started < deadline_s, told


def n_refreshes(editor: Client) -> int:
    return len(editor.asked("workspace/inlayHint/refresh"))


def has_refreshed(editor: Client, n_heard: int) -> bool:
    return n_refreshes(editor) > n_heard


async def test_an_estimate_for_another_gpu_is_there_before_anyone_asks(tmp_path: Path) -> None:
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    choose_gpu(tmp_path, "L4")
    async with initialized(tmp_path, VSCODE, trusted=True) as editor:
        uri = editor.open(path)
        assert BEING_ESTIMATED in await hovered(editor, uri)
        await until_estimated(editor, uri, "L4", CAPTURE_S)
        choose_gpu(tmp_path, "T4")
        change = {"uri": (tmp_path / "pyproject.toml").as_uri(), "type": 2}
        editor.tell("workspace/didChangeWatchedFiles", {"changes": [change]})
        await until_estimated(editor, uri, "T4", AGAIN_S)
        choose_gpu(tmp_path, "no such GPU")  # from here on nobody tells the server
        await until_no_figures(editor, uri)
        choose_gpu(tmp_path, "L40S")
        await until_estimated(editor, uri, "L40S", AGAIN_S)


async def until_no_figures(editor: Client, uri: str) -> None:
    async with asyncio.timeout(AGAIN_S):
        while "no figures are known for the GPU 'no such GPU'" not in await hovered(editor, uri):
            await asyncio.sleep(0.2)


async def test_diagnostics_go_and_come_for_a_client_that_watches_no_files(tmp_path: Path) -> None:
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    async with initialized(tmp_path, {**NEOVIM, "textDocument": {}}) as editor:
        uri = editor.open(path)
        assert await editor.diagnostics(uri)

        def newest() -> list[object]:
            return [p for p in editor.said("textDocument/publishDiagnostics") if p["uri"] == uri][-1]["diagnostics"]

        (tmp_path / "pyproject.toml").write_text("[tool.kernel-lsp]\ndiagnostics = false\n")
        await editor.until(lambda: newest() == [])
        (tmp_path / "pyproject.toml").unlink()
        await editor.until(newest)
