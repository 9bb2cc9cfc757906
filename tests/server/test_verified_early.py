"""A kernel that is verified while its run goes on can be used at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.server.state import USE_NOW

from .client import MINIMAL, VSCODE, initialized
from .fake_engine import requests_of, write_script

TEXT = "import torch\n\n# kernel-lsp: x=f32[64, 128]\ndef scale(x):\n    return x * 2.0\n"
EVENTS = (
    {"kind": "run_started", "run_id": "r", "target": "model.py::scale", "device": "CPU", "target_gpu": "H200"},
    {"kind": "generation_started", "generation": 0, "n_generations": 4, "n_proposals": 8},
    {"kind": "candidate_verified", "candidate_id": "c", "score_us": 3.5, "score_kind": "estimated"},
)


@pytest.mark.parametrize(("capabilities", "is_asked"), [(VSCODE, True), (MINIMAL, False)])
async def test_the_user_takes_a_verified_kernel_before_the_search_ends(
    tmp_path: Path, capabilities: dict[str, Any], *, is_asked: bool
) -> None:
    path, script, taken = tmp_path / "model.py", tmp_path / "script", tmp_path / "taken"
    path.write_text(TEXT)
    ended = {"error": {"kind": "user", "message": "the search ended"}}
    steps = [*({"event": event} for event in EVENTS), {"until": str(taken)}, ended]
    write_script(script, optimize=steps, take_verified=[{"result": {"found": True}}])
    answers = {"window/showMessageRequest": lambda params: {"title": params["actions"][0]["title"]}}
    async with initialized(tmp_path, capabilities, answers, engine_script=script, trusted=True) as editor:
        job = (await editor.command("optimize", uri=editor.open(path), symbol="scale"))["job"]
        if is_asked:
            await editor.until(lambda: "take_verified" in [each["method"] for each in requests_of(script)])
            (asked,) = editor.asked("window/showMessageRequest")
            assert asked["actions"] == [{"title": USE_NOW}]
            assert asked["message"].startswith("scale: a kernel is verified (3.5 us, estimated)")
            (request,) = [each for each in requests_of(script) if each["method"] == "take_verified"]
            assert request["job"] == job
        taken.touch()
        await editor.until(lambda: any("the search ended" in str(message) for message in editor.notifications))
        assert bool(editor.asked("window/showMessageRequest")) == is_asked
