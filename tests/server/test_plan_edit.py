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


async def offered(folder: Path, text: str) -> tuple[list[str], list[Any]]:
    """Return the titles of the actions in the first line, and the edits that *Add a launch plan* makes."""
    (folder / ".kernel-lsp").mkdir()
    edits: asyncio.Queue[Any] = asyncio.Queue()

    def apply(params: Any) -> Any:
        edits.put_nowait(params["edit"])
        return {"applied": True}

    async with initialized(folder, VSCODE, answers={"workspace/applyEdit": apply}) as editor:
        uri = editor.open(folder / "fill.cu", text)
        start = {"line": 0, "character": 0}
        about = {"textDocument": {"uri": uri}, "range": {"start": start, "end": start}, "context": {"diagnostics": []}}
        titles: list[str] = []
        while "Check now" not in titles:  # until the text is analysed
            titles = [action["title"] for action in await editor.ask("textDocument/codeAction", about)]
        if "Add a launch plan" not in titles:
            return titles, []
        await editor.command("addPlan", uri=uri)
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
