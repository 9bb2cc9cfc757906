"""Edits and requests in random order: memory stays flat, and the end is what a fresh server says.

`KERNEL_LSP_TEST_STEPS=50000` runs as many as two hours of work have.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server_latency import resident_mb
from kernel_lsp.server.documents.documents import Change, Document, Documents

from .client import VSCODE, Client, initialized
from .samples import KERNEL, SCALE

N_STEPS = int(os.environ.get("KERNEL_LSP_TEST_STEPS", "400"))
SEED = 20261121
SECONDS_PER_STEP = 0.5
"""Allowed at most, of a busy machine."""
MAX_GROWTH_MB = 12.0
MAX_LINES = 400
REQUESTS = ("hover", "codeLens", "codeAction", "inlayHint", "diagnostic")
PIECES = (
    "x = 1\n",
    "\n",
    "é😀",
    "def f(x: torch.Tensor):\n    return x.item()\n",
    "__syncthreads();\n",
    "}",
    '"""',
    " ",
    "\r\n",
)


@pytest.mark.timeout(60 + N_STEPS * SECONDS_PER_STEP)
async def test_many_edits_and_requests_leave_the_state_of_a_fresh_server(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.py", "b.py", "c.cu")]
    mirror = Documents("utf-16")
    random_ = random.Random(SEED)
    async with initialized(tmp_path, VSCODE, trusted=False) as editor:
        for path in paths:
            open_both(editor, mirror, path, KERNEL if path.suffix == ".cu" else SCALE)
        sizes = []
        for step in range(N_STEPS):
            await one_step(random_, editor, mirror, paths, step)
            if step % (N_STEPS // 5) == 0:
                sizes.append(resident_mb(editor.pid))
        sizes.append(resident_mb(editor.pid))
        lived = await everything(editor, mirror)
    async with initialized(tmp_path, VSCODE, trusted=False) as editor:
        for document in mirror:
            assert document.path is not None
            editor.open(document.path, document.text)
        assert await everything(editor, mirror) == lived
    assert sizes[-1] - sizes[1] <= MAX_GROWTH_MB, sizes


def open_both(editor: Client, mirror: Documents, path: Path, text: str) -> None:
    editor.open(path, text)
    mirror.open(path.as_uri(), "", 1, text)


async def one_step(random_: random.Random, editor: Client, mirror: Documents, paths: list[Path], step: int) -> None:
    path = random_.choice(paths)
    document = mirror.get(path.as_uri())
    assert document is not None
    kind = random_.random()
    if kind < 0.01:
        editor.tell("textDocument/didClose", {"textDocument": {"uri": path.as_uri()}})
        open_both(editor, mirror, path, KERNEL if path.suffix == ".cu" else SCALE)
    elif kind < 0.6:
        edit_both(random_, editor, document, step + 2)
    else:
        await editor.at(random_.choice(REQUESTS), path.as_uri(), random_.randrange(30), random_.randrange(30))


def edit_both(random_: random.Random, editor: Client, document: Document, version: int) -> None:
    """Insert a piece or delete a stretch; columns may be anywhere, also in the middle of a surrogate pair."""
    line, character = random_.randrange(len(document.lines) + 1), random_.randrange(12)
    is_long = len(document.lines) > MAX_LINES
    end = (line + (40 if is_long else random_.choice((0, 0, 0, 1))), character + random_.randrange(3))
    text = "" if is_long else random_.choice(PIECES)
    place: dict[str, Any] = {
        "start": {"line": line, "character": character},
        "end": {"line": end[0], "character": end[1]},
    }
    editor.change(document.uri, version, {"range": place, "text": text})
    document.apply([Change(text, (line, character), end)], version)


async def everything(editor: Client, mirror: Documents) -> list[Any]:
    """Return the server's diagnostics of all documents."""
    said = []
    for document in mirror:
        said.append(await editor.diagnostics(document.uri))
        said.append(await editor.at("codeLens", document.uri))
        said += [await editor.at("hover", document.uri, line, 4) for line in range(0, len(document.lines), 5)]
    return said
