"""A profile takes Nsight Compute long: what is shown meanwhile, and how its lines come when they come. The engine is a
fake one, with the pages that an H200 printed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.engine.messages import ProfileResult
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.tools.ncu import parse_raw, parse_source
from kernel_lsp.verify.profile.ncu_kernels import measured_kernels

from .client import MINIMAL, NEOVIM, VSCODE, Client, initialized
from .fake_engine import write_script

PROFILES = Path(__file__).parent.parent / "verify" / "profiles"
NAME = "slow_transpose.cu"
HOT_LINE = 20
"""0-based; its loads need an eighth of the sectors that they fetch."""
STAGE = f"profiling {NAME}: Nsight Compute runs each kernel of slow_transpose some 34 times"


def measured(kernel: Path) -> dict[str, Any]:
    """The reply of a job that profiled on an H200."""
    text = (PROFILES / NAME).read_text()
    operation = bind(parse_or_raise(text, NAME).forward, {"x": (4096, 1024)}, {}, kernel_signatures(text))
    launches = parse_raw((PROFILES / "recorded" / "ncu_raw.csv").read_text())
    sources = parse_source((PROFILES / "recorded" / "ncu_source.csv").read_text())
    symbols = {"scale<256>": "_Z5scale", "transpose_tiles": "_Z15transpose"}
    report = ProfileReport(
        kind="measured",
        file=NAME,
        device="H200",
        date="2026-11-21",
        shapes={"x": (4096, 1024)},
        time_us=117.0,
        floor_us=7.8,
        floor_basis="bytes",
        kernels=measured_kernels(operation, launches, sources, [], symbols, NAME),
        advice=(),
        tools=(),
    )
    return {"result": ProfileResult(kernel=kernel, report=report).model_dump(mode="json")}


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    shutil.copy(PROFILES / NAME, path)
    stage = {"event": {"kind": "stage_started", "message": STAGE}}
    until = {"until": str(tmp_path / "go")}
    started = {"event": {"kind": "job_started"}}
    write_script(tmp_path / "script", profile=[started, stage, until, measured(path)])
    return path


async def hints(editor: Client, uri: str) -> list[dict[str, Any]]:
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    return list(await editor.ask("textDocument/inlayHint", {"textDocument": {"uri": uri}, "range": whole}))


def n_refreshes(editor: Client) -> int:
    return len(editor.asked("workspace/inlayHint/refresh"))


@pytest.mark.parametrize("capabilities", [VSCODE, NEOVIM])
async def test_meanwhile_the_progress_names_the_tool_and_later_hints_and_a_refresh_come(
    kernel: Path, capabilities: dict[str, Any]
) -> None:
    folder = kernel.parent
    async with initialized(folder, capabilities, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.command("profile", uri=uri)
        await editor.until(lambda: [p for p in editor.said("$/progress") if p["value"].get("message") == STAGE])
        assert await hints(editor, uri) == []
        n_before = n_refreshes(editor)
        (folder / "go").touch()
        await editor.until(lambda: n_refreshes(editor) > n_before)
        found = await hints(editor, uri)
        hot = next(hint for hint in found if hint["position"]["line"] == HOT_LINE)
        assert "of scale<256>" in hot["label"]
        assert "(stale)" not in hot["label"]
        told = await editor.at("hover", uri, HOT_LINE, 8)
        assert "Measured on H200" in str(told)
        assert editor.said("$/progress")[-1]["value"]["kind"] == "end"


async def test_what_was_typed_meanwhile_moves_the_hints_and_marks_them(kernel: Path) -> None:
    folder = kernel.parent
    async with initialized(folder, VSCODE, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.command("profile", uri=uri)
        start = {"line": 9, "character": 0}
        editor.change(uri, 2, {"range": {"start": start, "end": start}, "text": "// a new line\n"})
        await editor.until(lambda: editor.asked("workspace/inlayHint/refresh"))
        n_before = n_refreshes(editor)
        (folder / "go").touch()
        await editor.until(lambda: n_refreshes(editor) > n_before)
        found = await hints(editor, uri)
        hot = next(hint for hint in found if hint["position"]["line"] == HOT_LINE + 1)
        assert hot["label"].endswith("(stale)")


async def test_a_client_without_hints_has_the_message_and_the_hover(kernel: Path) -> None:
    folder = kernel.parent
    async with initialized(folder, MINIMAL, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.command("profile", uri=uri)
        (folder / "go").touch()
        await editor.until(lambda: editor.said("window/showMessage"))
        assert n_refreshes(editor) == 0
        assert "Measured on H200" in str(await editor.at("hover", uri, HOT_LINE, 8))


async def test_a_document_that_was_closed_meanwhile_gets_nothing(kernel: Path) -> None:
    folder = kernel.parent
    async with initialized(folder, VSCODE, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.command("profile", uri=uri)
        editor.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
        (folder / "go").touch()
        (said,) = await editor.until(lambda: editor.said("window/showMessage"))
        assert said["message"].startswith(f"{NAME}: 117 us")
        editor.open(kernel)
        assert await hints(editor, uri) == []
