"""`docs/protocol.md` against the one file that declares the protocol."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from kernel_lsp.server.protocol import messages as protocol
from scripts.write_protocol_page import render

from .client import initialized

ROOT = Path(__file__).parent.parent.parent


def test_the_page_is_what_the_declarations_say() -> None:
    assert (ROOT / "docs" / "protocol.md").read_text() == render(), "run scripts/write_protocol_page.py"


def test_methods_of_ours_are_named_nowhere_else() -> None:
    declared = {method.name for method in protocol.METHODS}
    for file in (ROOT / "kernel_lsp" / "server").rglob("*.py"):
        text = file.read_text()
        named = {word.strip("\"'`.,:()") for word in text.split() if "kernelLsp/" in word}
        assert {name for name in named if name.startswith("kernelLsp/")} <= {*declared, "kernelLsp/"}, file


@pytest.mark.parametrize("method", protocol.METHODS, ids=lambda method: method.name)
def test_a_method_says_what_it_is_for(method: protocol.Method) -> None:
    assert method.summary.endswith(".")
    assert attrs.has(method.params)


async def test_results_have_the_fields_that_the_page_names(tmp_path: Path) -> None:
    async with initialized(tmp_path) as editor:
        status = await editor.ask("kernelLsp/status", {})
        for name in status:
            assert f"| `{name}` |" in render()
        assert {"jobs", "nDocuments", "analystPid", "enginePids"} <= set(status)
