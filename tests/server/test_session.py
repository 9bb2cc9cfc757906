"""A server as an editor has it: a process, from `initialize` to `exit`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from .client import MINIMAL, NEOVIM, SERVE, VSCODE, children, initialized, started
from .samples import CALL_LINE, KERNEL, NET_LINE, SCALE, SCALE_LINE

CLIENTS = pytest.mark.parametrize("client", [MINIMAL, NEOVIM, VSCODE], ids=["minimal", "neovim", "vscode"])
HEAVY = ("torch", "litellm", "ray", "numpy", "llvmlite", "sqlalchemy")


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    return path


def codes(diagnostics: list[dict[str, Any]]) -> set[str]:
    return {diagnostic["code"] for diagnostic in diagnostics}


@CLIENTS
async def test_an_opened_file_gets_diagnostics_lenses_and_hovers(scale: Path, client: dict[str, Any]) -> None:
    async with initialized(scale.parent, client) as editor:
        uri = editor.open(scale)
        assert "KL101" in codes(await editor.diagnostics(uri))
        titles = [lens["command"]["title"] for lens in await editor.at("codeLens", uri)]
        assert titles == ["Optimize to CUDA", "Optimize to CUDA"]
        assert "f32[64, 256]" in (await editor.at("hover", uri, SCALE_LINE, 5))["contents"]["value"]
        assert await editor.leave() == 0


@CLIENTS
async def test_diagnostics_are_pulled_or_pushed_and_never_both(scale: Path, client: dict[str, Any]) -> None:
    async with initialized(scale.parent, client) as editor:
        await editor.diagnostics(editor.open(scale))
        pulls = "diagnosticProvider" in editor.initialize_result["capabilities"]
        assert bool(editor.said("textDocument/publishDiagnostics")) is not pulls


async def test_diagnostics_follow_the_edits_and_name_the_version(scale: Path) -> None:
    async with initialized(scale.parent) as editor:
        uri = editor.open(scale)
        await editor.diagnostics(uri)
        line = SCALE.split("\n")[CALL_LINE]
        whole = {"start": {"line": CALL_LINE, "character": 0}, "end": {"line": CALL_LINE, "character": len(line)}}
        editor.change(uri, 7, {"range": whole, "text": "        return x"})
        told = await editor.until(
            lambda: [p for p in editor.said("textDocument/publishDiagnostics") if p.get("version") == 7]
        )
        assert "KL101" not in codes(told[-1]["diagnostics"])


async def test_an_unchanged_pull_is_answered_as_such(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE) as editor:
        document = {"textDocument": {"uri": editor.open(scale)}}
        first = await editor.ask("textDocument/diagnostic", document)
        again = await editor.ask("textDocument/diagnostic", {**document, "previousResultId": first["resultId"]})
        assert (first["kind"], again["kind"]) == ("full", "unchanged")


async def test_a_closed_file_has_no_diagnostics(scale: Path) -> None:
    async with initialized(scale.parent) as editor:
        uri = editor.open(scale)
        await editor.diagnostics(uri)
        editor.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
        await editor.until(lambda: editor.said("textDocument/publishDiagnostics")[-1]["diagnostics"] == [])


@pytest.mark.parametrize(("encoding", "character"), [("utf-8", 30), ("utf-16", 28), ("utf-32", 27)])
async def test_columns_are_in_the_client_s_units(tmp_path: Path, encoding: str, character: int) -> None:
    path = tmp_path / "scale.py"
    path.write_text(SCALE.replace("return scale(x, x) + x.sum().item()", "y = '😀'; return x.sum().item()"))
    capabilities = {"general": {"positionEncodings": [encoding]}}
    async with initialized(tmp_path, capabilities) as editor:
        assert editor.initialize_result["capabilities"]["positionEncoding"] == encoding
        found = next(d for d in await editor.diagnostics(editor.open(path)) if d["code"] == "KL101")
        line = path.read_text().split("\n")[CALL_LINE]
        before = line[: line.index("x.sum()")]
        width = {"utf-8": len(before.encode()), "utf-16": len(before.encode("utf-16-le")) // 2, "utf-32": len(before)}
        assert found["range"]["start"]["character"] == width[encoding]


async def test_settings_of_the_client_hold_and_change_without_a_restart(scale: Path) -> None:
    values: dict[str, Any] = {"codeLens": False}
    answers = {"workspace/configuration": lambda params: [values for _ in params["items"]]}
    async with initialized(scale.parent, VSCODE, answers) as editor:
        uri = editor.open(scale)
        await editor.diagnostics(uri)
        await editor.until(lambda: editor.asked("workspace/configuration"))
        assert await editor.at("codeLens", uri) == []
        values["codeLens"] = True
        editor.tell("workspace/didChangeConfiguration", {"settings": None})
        await editor.until(lambda: len(editor.asked("workspace/configuration")) > 1)
        await asyncio.sleep(0.2)
        assert await editor.at("codeLens", uri) != []


async def test_each_folder_has_its_own_settings(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "scale.py").write_text(SCALE)
    values = {None: {}, folders[0].as_uri(): {"codeLens": True}, folders[1].as_uri(): {"codeLens": False}}
    answers = {"workspace/configuration": lambda params: [values.get(item.get("scopeUri")) for item in params["items"]]}
    async with initialized(folders[0], VSCODE, answers) as editor:
        event = {"added": [{"uri": folders[1].as_uri(), "name": "two"}], "removed": []}
        editor.tell("workspace/didChangeWorkspaceFolders", {"event": event})
        await editor.until(lambda: [p for p in editor.asked("workspace/configuration") if len(p["items"]) == 3])
        await asyncio.sleep(0.2)
        n_lenses = [len(await editor.at("codeLens", editor.open(folder / "scale.py"))) for folder in folders]
        assert n_lenses == [2, 0]


async def test_settings_may_come_in_the_notification(scale: Path) -> None:
    async with initialized(scale.parent, settings={"codeLens": False}) as editor:
        uri = editor.open(scale)
        assert await editor.at("codeLens", uri) == []
        editor.tell("workspace/didChangeConfiguration", {"settings": {"kernelLsp": {"codeLens": True}}})
        assert await editor.at("codeLens", uri) != []


async def test_settings_of_pyproject_hold(scale: Path) -> None:
    (scale.parent / "pyproject.toml").write_text("[tool.kernel-lsp]\ncode-lens = false\n")
    async with initialized(scale.parent) as editor:
        uri = editor.open(scale)
        assert await editor.at("codeLens", uri) == []
        (scale.parent / "pyproject.toml").write_text("[tool.kernel-lsp]\ncode-lens = true\n")
        os.utime(scale.parent / "pyproject.toml", (1, 1))
        assert await editor.at("codeLens", uri) != []


async def test_a_wrong_setting_is_told_once(scale: Path) -> None:
    async with initialized(scale.parent, settings={"generations": -3}) as editor:
        uri = editor.open(scale)
        for _ in range(3):
            await editor.at("codeLens", uri)
        (told,) = editor.said("window/showMessage")
        assert "generations" in told["message"]


async def test_an_untrusted_workspace_runs_nothing(scale: Path) -> None:
    async with initialized(scale.parent, trusted=False) as editor:
        uri = editor.open(scale)
        assert "not trusted" in (await editor.at("hover", uri, SCALE_LINE, 5))["contents"]["value"]
        command = {"command": "kernelLsp.optimize", "arguments": [{"uri": uri, "symbol": "scale"}]}
        reply = await editor.reply("workspace/executeCommand", command)
        assert "not trusted" in reply["error"]["message"]
        status = await editor.ask("kernelLsp/status", {})
        assert (status["jobs"], status["enginePids"]) == ([], [])
        assert list(children(editor)) == [status["analystPid"]]


async def test_a_client_that_says_nothing_of_trust_starts_nothing_by_itself(scale: Path) -> None:
    async with initialized(scale.parent) as editor:
        uri = editor.open(scale)
        hover = (await editor.at("hover", uri, SCALE_LINE, 5))["contents"]["value"]
        assert "Estimate scale (a code action)" in hover
        assert (await editor.ask("kernelLsp/status", {}))["enginePids"] == []


async def test_an_unsaved_file_is_not_optimized(scale: Path) -> None:
    async with initialized(scale.parent, trusted=True) as editor:
        uri = editor.open(scale, SCALE + "\n# not saved\n")
        command = {"command": "kernelLsp.optimize", "arguments": [{"uri": uri, "symbol": "scale"}]}
        reply = await editor.reply("workspace/executeCommand", command)
        assert "Save scale.py first" in reply["error"]["message"]


def notebook_of(folder: Path, *cells: str) -> tuple[dict[str, Any], list[str]]:
    """Return the notification that opens a notebook with these code cells, and their URIs."""
    uris = [f"vscode-notebook-cell:{folder}/a.ipynb#W{number}" for number in range(len(cells))]
    notebook = {
        "uri": (folder / "a.ipynb").as_uri(),
        "notebookType": "jupyter-notebook",
        "version": 1,
        "cells": [{"kind": 2, "document": uri} for uri in uris],
    }
    texts = [
        {"uri": u, "languageId": "python", "version": 1, "text": text} for u, text in zip(uris, cells, strict=True)
    ]
    return {"notebookDocument": notebook, "cellTextDocuments": texts}, uris


async def test_a_notebook_s_cells_are_texts(tmp_path: Path) -> None:
    async with initialized(tmp_path, VSCODE) as editor:
        opened, (cell,) = notebook_of(tmp_path, SCALE)
        editor.tell("notebookDocument/didOpen", opened)
        assert "KL101" in codes(await editor.diagnostics(cell))
        assert [lens["range"]["start"]["line"] for lens in await editor.at("codeLens", cell)] == [SCALE_LINE, NET_LINE]
        changes = [{"text": "x = 1\n"}]
        edited = {"cells": {"textContent": [{"document": {"uri": cell, "version": 2}, "changes": changes}]}}
        identifier = {"uri": opened["notebookDocument"]["uri"], "version": 2}
        editor.tell("notebookDocument/didChange", {"notebookDocument": identifier, "change": edited})
        assert await editor.diagnostics(cell) == []


async def test_a_cell_is_understood_with_the_cells_above_it(tmp_path: Path) -> None:
    imports, rest = SCALE.split("\n\n\n", 1)
    async with initialized(tmp_path, VSCODE) as editor:
        opened, (first, second) = notebook_of(tmp_path, f"%matplotlib inline\n{imports}\n!ls", rest)
        editor.tell("notebookDocument/didOpen", opened)
        n_above = SCALE[: -len(rest)].count("\n")
        found = await editor.diagnostics(second)
        assert [each["range"]["start"]["line"] for each in found if each["code"] == "KL101"] == [CALL_LINE - n_above]
        assert await editor.diagnostics(first) == []
        lenses = [lens["range"]["start"]["line"] for lens in await editor.at("codeLens", second)]
        assert lenses == [SCALE_LINE - n_above, NET_LINE - n_above]


async def test_a_cell_that_goes_takes_its_names_from_those_below(tmp_path: Path) -> None:
    imports, rest = SCALE.split("\n\n\n", 1)
    async with initialized(tmp_path, VSCODE) as editor:
        opened, (first, second) = notebook_of(tmp_path, imports, rest)
        editor.tell("notebookDocument/didOpen", opened)
        assert await editor.diagnostics(second)
        identifier = {"uri": opened["notebookDocument"]["uri"], "version": 2}
        gone = {"array": {"start": 0, "deleteCount": 1}, "didClose": [{"uri": first}]}
        change = {"cells": {"structure": gone}}
        editor.tell("notebookDocument/didChange", {"notebookDocument": identifier, "change": change})
        edit = {"document": {"uri": second, "version": 2}, "changes": [{"text": rest + "\n"}]}
        editor.tell(
            "notebookDocument/didChange", {"notebookDocument": identifier, "change": {"cells": {"textContent": [edit]}}}
        )
        assert await editor.diagnostics(second) == []


async def test_a_rule_can_be_explained(scale: Path) -> None:
    async with initialized(scale.parent) as editor:
        assert "KL101" in await editor.command("explain", code="KL101")


async def test_a_rule_is_explained_by_its_page_where_the_editor_opens_one(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, {"window/showDocument": lambda _: {"success": True}}) as editor:
        await editor.command("explain", code="KL101")
        (shown,) = await editor.until(lambda: editor.asked("window/showDocument"))
        page = Path(unquote(shown["uri"].removeprefix("file://"))).read_text().splitlines()
        assert page[shown["selection"]["start"]["line"]] == "## KL101"
        assert not editor.said("window/showMessage")


async def test_a_kernel_file_gets_its_rules(tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_text(KERNEL.replace("if (i < n) ", ""))
    async with initialized(tmp_path) as editor:
        uri = editor.open(path)
        assert any(code.startswith("KL2") for code in codes(await editor.diagnostics(uri)))
        assert [lens["command"]["title"] for lens in await editor.at("codeLens", uri)][:1] == ["Check now"]


# --- beginning and end


async def test_the_handshake_needs_no_heavy_library() -> None:
    program = "import sys\nfrom kernel_lsp.server import main\nprint(*[m for m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = {name.split(".")[0] for name in done.stdout.split()}
    assert not imported & {*HEAVY, "pygls", "lsprotocol", "pydantic", "attrs", "tree_sitter"}


async def test_the_server_never_imports_a_heavy_library(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, trusted=True) as editor:
        uri = editor.open(scale)
        await editor.diagnostics(uri)
        await editor.at("hover", uri, SCALE_LINE, 5)
        await editor.at("codeAction", uri, NET_LINE)
        mapped = Path(f"/proc/{editor.pid}/maps").read_text()
        assert not [name for name in HEAVY if f"/site-packages/{name}" in mapped]


def test_the_whole_server_imports_no_heavy_library() -> None:
    program = (
        "import sys, json\n"
        "import kernel_lsp.server.server_loop, kernel_lsp.server.jobs.job_results, kernel_lsp.server.commands\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []


async def test_exit_without_shutdown_is_an_error(scale: Path) -> None:
    async with initialized(scale.parent) as editor:
        editor.tell("exit")
        assert await asyncio.wait_for(editor.process.wait(), 20) == 1


async def test_exit_before_initialize_is_an_error() -> None:
    async with started() as editor:
        editor.tell("exit")
        assert await asyncio.wait_for(editor.process.wait(), 20) == 1


async def test_the_end_of_the_input_ends_the_server_and_its_children(scale: Path) -> None:
    async with initialized(scale.parent) as editor:
        await editor.diagnostics(editor.open(scale))
        below = children(editor)
        assert editor.process.stdin is not None
        editor.process.stdin.close()
        await asyncio.wait_for(editor.process.wait(), 20)
        assert below
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]


async def test_the_analyst_s_death_is_noticed_and_mended(scale: Path) -> None:
    async with initialized(scale.parent) as editor:
        uri = editor.open(scale)
        await editor.diagnostics(uri)
        os.kill((await editor.ask("kernelLsp/status", {}))["analystPid"], signal.SIGKILL)
        editor.change(uri, 2, {"text": SCALE + "# more\n"})
        await editor.until(lambda: [p for p in editor.said("textDocument/publishDiagnostics") if p.get("version") == 2])
        editor.change(uri, 3, {"text": SCALE + "# still more\n"})
        told = await editor.until(
            lambda: [p for p in editor.said("textDocument/publishDiagnostics") if p.get("version") == 3]
        )
        assert "KL101" in codes(told[-1]["diagnostics"])


async def test_a_killed_client_takes_the_server_with_it(tmp_path: Path) -> None:
    """Also when somebody else still holds the pipe."""
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = await asyncio.create_subprocess_exec(
        *SERVE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    params = {"processId": holder.pid, "rootUri": tmp_path.as_uri(), "capabilities": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert process.stdout is not None
    await process.stdout.readuntil(b"\r\n\r\n")
    holder.kill()
    holder.wait()
    await asyncio.wait_for(process.wait(), 20)
