"""The first click on a target without shapes: a prompt with consistent ones, one edit, and the run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.server.documents.documents import Change, Documents
from kernel_lsp.server.jobs.inferred_inputs import EDIT, RECORD, USE

from .client import MINIMAL, VSCODE, Client, initialized
from .fake_engine import requests_of, write_script

NORM = """\
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
"""
LENET = """\
import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 16, 5)
        self.b = nn.Linear(16 * 14 * 14, 10)

    def forward(self, x):
        return self.b(torch.flatten(F.max_pool2d(self.a(x), 2), 1))
"""
TRIAL_S = 180.0
SMALLER = ("# kernel-lsp: init: dim=64", "# kernel-lsp: x=f32[32, 64]")
"""Inputs that the code accepts, as the fake engine proposes them."""


class Editor:
    """A client that applies edits, and with `saves` saves what it applied. `chosen` is its user's choice."""

    def __init__(self, path: Path, chosen: str, *, saves: bool = True) -> None:
        self.path, self.chosen, self.saves = path, chosen, saves
        self.client: Client | None = None
        self.answers: dict[str, Any] = {
            "window/showMessageRequest": lambda _: {"title": chosen} if chosen else None,
            "workspace/applyEdit": self._apply,
            "workspace/configuration": lambda params: [None for _ in params["items"]],
            "window/showDocument": lambda _: {"success": True},
        }
        self.text = path.read_text()

    def _apply(self, params: Any) -> dict[str, bool]:
        (change,) = params["edit"].get("documentChanges") or [
            {"edits": edits} for edits in params["edit"]["changes"].values()
        ]
        document = Documents("utf-16").open(self.path.as_uri(), "python", 1, self.text)
        for edit in sorted(change["edits"], key=lambda edit: -edit["range"]["start"]["line"]):
            at = (edit["range"]["start"]["line"], edit["range"]["start"]["character"])
            document.apply([Change(edit["newText"], at, at)], 2)
        self.text = document.text
        assert self.client is not None
        self.client.change(self.path.as_uri(), 2, {"text": self.text})
        if self.saves:
            self.path.write_text(self.text)
        return {"applied": True}

    def type_over(self, text: str) -> dict[str, str]:
        """Change the text while the prompt is open, and then choose."""
        assert self.client is not None
        self.client.change(self.path.as_uri(), 2, {"text": text})
        return {"title": self.chosen}

    def save(self) -> None:
        self.path.write_text(self.text)
        assert self.client is not None
        self.client.tell("textDocument/didSave", {"textDocument": {"uri": self.path.as_uri()}})


@pytest.fixture
def norm(tmp_path: Path) -> Path:
    (tmp_path / ".kernel-lsp").mkdir()
    path = tmp_path / "model.py"
    path.write_text(NORM)
    return path


@asynccontextmanager
async def clicked(
    path: Path, chosen: str, command: str = "optimize", capabilities: dict[str, Any] = VSCODE, **how: Any
) -> AsyncIterator[tuple[Client, Editor, Path]]:
    """An editor whose user clicked the command and chose; the engine is a fake one."""
    script = path.parent / "script.json"
    failure = {"error": {"kind": "cancelled", "message": "over"}}
    write_script(script, infer_inputs=[how.pop("reply", {"result": {"texts": SMALLER}})], optimize=[failure])
    editor = Editor(path, chosen, **how)
    async with initialized(path.parent, capabilities, editor.answers, script, trusted=True) as client:
        editor.client = client
        uri = client.open(path)
        await client.command(command, uri=uri, symbol="RMSNorm")
        yield client, editor, script


async def methods(client: Client, script: Path, n: int) -> list[str]:
    await client.until(lambda: len(requests_of(script)) >= n)
    return [request["method"] for request in requests_of(script)]


async def test_one_choice_writes_every_pragma_and_starts_the_run(norm: Path) -> None:
    async with clicked(norm, USE) as (client, _, script):
        assert await methods(client, script, 2) == ["infer_inputs", "optimize"]
        assert len(client.asked("workspace/applyEdit")) == 1
        assert "    # kernel-lsp: x=f32[32, 64]\n    def forward" in norm.read_text()
        assert "# kernel-lsp: init: dim=64\nclass RMSNorm" in norm.read_text()


async def test_the_prompt_says_what_was_inferred(norm: Path) -> None:
    async with clicked(norm, "") as (client, _, _script):
        (asked,) = await client.until(lambda: client.asked("window/showMessageRequest"))
        assert "init: dim=64; x=f32[32, 64]" in asked["message"]
        assert [action["title"] for action in asked["actions"]] == [USE, EDIT, RECORD]


async def test_the_run_with_backward_stays_one_with_backward(norm: Path) -> None:
    async with clicked(norm, USE, "optimizeWithBackward") as (client, _, script):
        await methods(client, script, 2)
        assert requests_of(script)[1]["backward"]


async def test_where_the_client_does_not_save_the_run_starts_at_the_next_save(norm: Path) -> None:
    async with clicked(norm, USE, saves=False) as (client, editor, script):
        await client.until(
            lambda: [told for told in client.said("window/showMessage") if "Save model.py" in told["message"]]
        )
        assert len(requests_of(script)) == 1
        editor.save()
        assert await methods(client, script, 2) == ["infer_inputs", "optimize"]


async def test_edit_writes_them_and_shows_the_line(norm: Path) -> None:
    async with clicked(norm, EDIT) as (client, _, script):
        (shown,) = await client.until(lambda: client.asked("window/showDocument"))
        assert shown["selection"]["start"]["line"] == 4
        assert (len(requests_of(script)), norm.read_text().count("# kernel-lsp:")) == (1, 2)


@pytest.mark.parametrize("has_terminal", [True, False])
async def test_recording_is_offered_as_a_command_line(norm: Path, has_terminal: bool) -> None:
    capabilities = {**VSCODE, "experimental": {"kernelLsp": {"terminal": has_terminal}}}
    method = "kernelLsp/typeCommand" if has_terminal else "window/showMessage"
    async with clicked(norm, RECORD, capabilities=capabilities) as (client, _, _script):
        (told,) = await client.until(lambda: client.said(method))
        assert "kernel-lsp record -- python SCRIPT.py" in told["command" if has_terminal else "message"]


async def test_a_client_without_prompts_is_told_what_add_shapes_writes(norm: Path) -> None:
    async with clicked(norm, "", capabilities=MINIMAL) as (client, _, script):
        (told,) = await client.until(lambda: client.said("window/showMessage"))
        assert "Add shapes" in told["message"]
        assert (len(requests_of(script)), norm.read_text()) == (1, NORM)


async def test_without_a_prompt_adding_shapes_is_a_command(norm: Path) -> None:
    async with clicked(norm, "", "addShapes", MINIMAL) as (client, _, _script):
        await client.until(lambda: norm.read_text().count("# kernel-lsp:") == 2)
        assert client.asked("window/showMessageRequest") == []


async def test_what_is_missing_is_said_with_its_line(norm: Path) -> None:
    problem = {"kind": "user", "message": "mat1 and mat2", "file": str(norm), "line": 12, "next_step": "write them"}
    async with clicked(norm, "", reply={"error": problem}) as (client, _, _script):
        (asked,) = await client.until(lambda: client.asked("window/showMessageRequest"))
        assert asked["message"] == "No shapes for RMSNorm: model.py:12: mat1 and mat2. Next: write them"


async def test_a_text_that_changed_meanwhile_is_not_edited(norm: Path) -> None:
    async with clicked(norm, USE) as (client, editor, _):
        client.answers["window/showMessageRequest"] = lambda _: editor.type_over(NORM.replace("eps", "epsilon"))
        await client.until(
            lambda: [t for t in client.said("window/showMessage") if "changed meanwhile" in t["message"]]
        )
        assert client.asked("workspace/applyEdit") == []


async def test_shapes_are_tried_before_they_are_offered(norm: Path) -> None:
    """With a real engine. The first example, images of 56 x 56, is not what the last layer takes."""
    norm.write_text(LENET)
    editor = Editor(norm, "")
    async with initialized(norm.parent, VSCODE, editor.answers, trusted=True) as client:
        editor.client = client
        await client.command("addShapes", uri=client.open(norm), symbol="LeNet")
        await client.until(lambda: client.asked("workspace/applyEdit"), TRIAL_S)
        assert "    # kernel-lsp: x=f32[8, 1, 32, 32]\n    def forward" in norm.read_text()
