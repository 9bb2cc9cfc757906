"""A launch plan for a kernel file that has none, as one edit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kernel_lsp.plan.parser import parse

from .client import VSCODE, initialized

TEXT = """__global__ void fill(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 1.0f;
}
"""


async def offered(folder: Path, text: str, line: int = 0) -> tuple[list[str], list[Any]]:
    """Return the titles of the actions in a line, and the edits that *Add a launch plan* makes."""
    (folder / ".kernel-lsp").mkdir()
    edits: asyncio.Queue[Any] = asyncio.Queue()

    def apply(params: Any) -> Any:
        edits.put_nowait(params["edit"])
        return {"applied": True}

    async with initialized(folder, VSCODE, answers={"workspace/applyEdit": apply}) as editor:
        uri = editor.open(folder / "fill.cu", text)
        start = {"line": line, "character": 0}
        about = {"textDocument": {"uri": uri}, "range": {"start": start, "end": start}, "context": {"diagnostics": []}}
        titles: list[str] = []
        while "Check now" not in titles:  # until the text is analysed
            actions = await editor.ask("textDocument/codeAction", about)
            titles = [action["title"] for action in actions]
        if "Add a launch plan" not in titles:
            return titles, []
        (added,) = (each["command"] for each in actions if each["title"] == "Add a launch plan")
        await editor.ask("workspace/executeCommand", {key: added[key] for key in ("command", "arguments")})
        async with asyncio.timeout(60):
            return titles, [await edits.get()]


async def test_the_edit_inserts_a_plan_that_parses(tmp_path: Path) -> None:
    titles, edits = await offered(tmp_path, TEXT)
    assert "Add a launch plan" in titles
    (edit,) = edits
    (change,) = edit["documentChanges"]
    (inserted,) = change["edits"]
    assert inserted["range"]["start"] == inserted["range"]["end"] == {"line": 0, "character": 0}
    assert parse(inserted["newText"] + TEXT).findings == ()


async def test_a_file_with_a_plan_is_not_offered_another(tmp_path: Path) -> None:
    plan = "// kernel-lsp: 1\n// op: fill(n: int) -> (out: f32[n])\n// launch: fill<<<n, 1>>>(out, n)\n\n"
    titles, _ = await offered(tmp_path, plan + TEXT)
    assert "Check now" in titles
    assert "Add a launch plan" not in titles


async def test_the_plan_is_for_the_kernel_at_the_cursor(tmp_path: Path) -> None:
    text = TEXT + TEXT.replace("fill", "clear")
    for line, kernel in ((1, "fill"), (5, "clear")):
        folder = tmp_path / kernel
        folder.mkdir()
        _, (edit,) = await offered(folder, text, line)
        assert f"// launch: {kernel}<<<" in edit["documentChanges"][0]["edits"][0]["newText"]
