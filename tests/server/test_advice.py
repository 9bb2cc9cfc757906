"""The recommendation in the editor: in the lens, as a diagnostic, and in how a result is offered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.recommendation import Recommendation
from kernel_lsp.engine.messages import ResultFile, RunResult, RunSummary

from .client import NEOVIM, VSCODE, initialized
from .fake_engine import write_script
from .samples import SCALE, SCALE_LINE, run_of_scale

KERNEL_TEXT = "// k\n"
HEADLINE = "keep torch.compile: 0.84x"
KEEP = Recommendation(
    action="keep", ratio=0.84, against="compile", kind="measured", why="slower than torch.compile",
    remedy="a larger target", is_complete=True, headline=HEADLINE,
)  # fmt: skip


def scripted(folder: Path, advice: Recommendation | None) -> tuple[Path, RunSummary]:
    """A run whose engine answers at once with this recommendation."""
    path = folder / "scale.py"
    path.write_text(SCALE)
    summary = run_of_scale(path).model_copy(update={"recommendation": advice})
    result = RunResult(summary=summary, files=(ResultFile(path=folder / "kernels" / "scale.cu", text=KERNEL_TEXT),))
    write_script(folder / "script", optimize=[{"result": result.model_dump(mode="json")}])
    return path, summary


async def ended(
    folder: Path,
    capabilities: dict[str, Any],
    advice: Recommendation | None,
    apply: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Messages to an editor, and what it shows after the run. `apply` does what the editor does with an edit."""
    path, _ = scripted(folder, advice)

    def applied(_: Any) -> dict[str, bool]:
        apply()
        return {"applied": True}

    answers = {"workspace/applyEdit": applied}
    async with initialized(folder, capabilities, answers, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(path)
        await editor.command("optimize", uri=uri, symbol="scale")
        await editor.until(
            lambda: (
                editor.said("window/showMessage") or (capabilities is VSCODE and editor.asked("workspace/applyEdit"))
            )
        )
        lenses = await editor.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
        return {
            "edits": editor.asked("workspace/applyEdit"),
            "messages": [each["message"] for each in editor.said("window/showMessage")],
            "lenses": [lens["command"]["title"] for lens in lenses],
            "advice": [d for d in await editor.diagnostics(uri) if d["source"] == "kernel-lsp advice"],
        }


async def test_a_slower_kernel_is_said_first_in_the_lens_and_at_the_target(tmp_path: Path) -> None:
    found = await ended(tmp_path, VSCODE, KEEP)
    assert any(title.startswith(f"{HEADLINE}, ") for title in found["lenses"])
    (advice,) = found["advice"]
    assert (advice["range"]["start"]["line"], advice["severity"]) == (SCALE_LINE, 3)
    assert advice["message"] == f"{HEADLINE} (measured): slower than torch.compile; what would help: a larger target"


async def test_an_editor_that_reviews_is_told_not_to_offer_apply_first(tmp_path: Path) -> None:
    (edit,) = (await ended(tmp_path, VSCODE, KEEP))["edits"]
    (annotation,) = edit["edit"]["changeAnnotations"].values()
    assert annotation["description"].endswith("; keep PyTorch")
    assert HEADLINE in annotation["label"]


async def test_apply_is_no_default_where_times_do_not_decide(tmp_path: Path) -> None:
    measure = KEEP.model_copy(update={"action": "measure", "headline": "measure first: 1.04x"})
    (edit,) = (await ended(tmp_path, VSCODE, measure))["edits"]
    (annotation,) = edit["edit"]["changeAnnotations"].values()
    assert annotation["description"].endswith("; measure first")


async def test_an_editor_that_cannot_review_applies_nothing(tmp_path: Path) -> None:
    found = await ended(tmp_path, NEOVIM, KEEP)
    assert not found["edits"]
    assert any(HEADLINE in said and "PyTorch is recommended" in said for said in found["messages"])


@pytest.mark.parametrize("headline", ["", "measure first: 1.04x"], ids=["apply", "measure"])
async def test_an_editor_that_cannot_review_says_which_files_are_new_and_unsaved(tmp_path: Path, headline: str) -> None:
    advice = KEEP.model_copy(update={"action": "measure" if headline else "apply", "headline": headline})
    (message,) = (await ended(tmp_path, NEOVIM, advice))["messages"]
    assert message.startswith(f"kernel-lsp: scale: 1 new file in kernels (1 unsaved: save all); {headline}")
    assert message.endswith(", verified on PTX executor (CPU)")


async def test_an_editor_that_saves_what_it_applies_is_not_asked_to_save(tmp_path: Path) -> None:
    kernel = tmp_path / "kernels" / "scale.cu"
    (message,) = (await ended(tmp_path, NEOVIM, None, lambda: kernel.write_text(KERNEL_TEXT)))["messages"]
    assert message.startswith("kernel-lsp: scale: 1 new file in kernels; ")


async def test_a_faster_kernel_is_applied_and_nothing_is_advised(tmp_path: Path) -> None:
    found = await ended(tmp_path, NEOVIM, None)
    assert len(found["edits"]) == 1
    assert not found["advice"]
