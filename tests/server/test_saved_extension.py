"""Save a torch extension: its kernels are compiled, and each finding stands once."""

from __future__ import annotations

import shutil
from pathlib import Path

from .client import VSCODE, initialized

EXTENSION = Path(__file__).parent.parent / "editors" / "project" / "extension.cu"
KERNEL_LINE = 2


async def test_a_saved_extension_has_each_finding_once_and_its_kernels_registers(tmp_path: Path) -> None:
    (tmp_path / ".kernel-lsp").mkdir()
    file = Path(shutil.copy(EXTENSION, tmp_path))
    async with initialized(tmp_path, VSCODE, trusted=True) as editor:
        uri = editor.open(file)
        typed = [found["code"] for found in await editor.diagnostics(uri)]
        editor.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
        await editor.until(lambda: [job for job in editor.said("kernelLsp/jobChanged") if job["state"] == "finished"])
        saved = [found["code"] for found in await editor.diagnostics(uri)]
        assert sorted(saved) == sorted([*typed, "unsupported"])
        assert "occupancy 100%" in (await editor.at("hover", uri, KERNEL_LINE))["contents"]["value"]
