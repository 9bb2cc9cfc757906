"""After *Apply* every call site is offered, as one edit of several files, and *Revert* takes all back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernel_lsp.engine.messages import ResultFile, RunList, RunResult

from .client import VSCODE, initialized
from .fake_engine import write_script
from .samples import SCALE, run_of_scale

TRAIN = "from scale import scale\n\nprint(scale(1, 2))\n"
USED = "from scale import scale\nfrom kernels.scale import use_scale\n\nprint(use_scale(scale)(1, 2))\n"


def scripted(folder: Path) -> Path:
    """A workspace with calls in two files, and an engine that answers at once with an operator."""
    path, operator = folder / "scale.py", folder / "kernels" / "scale.py"
    (folder / ".kernel-lsp").mkdir()
    path.write_text(SCALE)
    (folder / "train.py").write_text(TRAIN)
    result = RunResult(
        summary=run_of_scale(path), files=(ResultFile(path=operator, text="def use_scale(original): ..."),)
    )
    write_script(folder / "script", optimize=[{"result": result.model_dump(mode="json")}])
    return path


def new_texts(asked: dict[str, Any]) -> dict[str, str]:
    """The texts of an edit, by file name."""
    changes = [change for change in asked["edit"]["documentChanges"] if "edits" in change]
    return {change["textDocument"]["uri"].rpartition("/")[2]: change["edits"][0]["newText"] for change in changes}


async def test_every_call_site_is_offered_once_the_operator_is_applied(tmp_path: Path) -> None:
    path = scripted(tmp_path)
    answers = {"workspace/applyEdit": lambda _: {"applied": True}}
    async with initialized(tmp_path, VSCODE, answers, engine_script=tmp_path / "script", trusted=True) as editor:
        await editor.command("optimize", uri=editor.open(path), symbol="scale")
        await editor.until(lambda: len(editor.asked("workspace/applyEdit")) == 2)
        assert not editor.asked("window/showMessageRequest")  # the review of the edit is the question
        edit = editor.asked("workspace/applyEdit")[1]
        assert edit["label"] == "kernel-lsp: Use scale at 2 call sites in 2 files"
        assert new_texts(edit)["train.py"] == USED
        assert set(new_texts(edit)) == {"scale.py", "train.py"}
        assert [a["needsConfirmation"] for a in edit["edit"]["changeAnnotations"].values()] == [True]


async def test_a_use_before_the_archive_is_read_waits_for_it(tmp_path: Path) -> None:
    path = scripted(tmp_path)
    (tmp_path / ".kernel-lsp" / "archive.sqlite3").touch()
    run = run_of_scale(path)
    run.out.mkdir()
    (run.out / "scale.py").write_text("def use_scale(original): ...\n")
    listed = {"result": RunList(runs=(run,)).model_dump(mode="json")}
    write_script(tmp_path / "script", runs=[{"until": str(tmp_path / "read")}, listed])
    answers = {"workspace/applyEdit": lambda _: {"applied": True}}
    async with initialized(tmp_path, VSCODE, answers, engine_script=tmp_path / "script", trusted=True) as editor:
        await editor.command("useEverywhere", uri=editor.open(path), symbol="scale")
        (tmp_path / "read").touch()
        await editor.until(lambda: editor.asked("workspace/applyEdit") or editor.said("window/showMessage"))
        assert new_texts(editor.asked("workspace/applyEdit")[0])["train.py"] == USED


async def test_a_use_after_the_operator_s_folder_is_gone_says_how_it_comes_back(tmp_path: Path) -> None:
    path = scripted(tmp_path)
    (tmp_path / ".kernel-lsp" / "archive.sqlite3").touch()
    listed = {"result": RunList(runs=(run_of_scale(path),)).model_dump(mode="json")}
    write_script(tmp_path / "script", runs=[listed])
    async with initialized(tmp_path, VSCODE, engine_script=tmp_path / "script", trusted=True) as editor:
        await editor.command("useEverywhere", uri=editor.open(path), symbol="scale")
        (told,) = await editor.until(lambda: editor.said("window/showMessage"))
        assert told["message"] == (
            "scale: kernels/scale.py has no operator to use. "
            "`kernel-lsp export 1121-000000-abcdef --operator kernels` writes it again"
        )


async def test_revert_takes_back_every_file(tmp_path: Path) -> None:
    path = scripted(tmp_path)
    (tmp_path / "train.py").write_text(USED)
    (tmp_path / "other.py").write_text(USED)
    answers = {"workspace/applyEdit": lambda _: {"applied": True}}
    async with initialized(tmp_path, VSCODE, answers, engine_script=tmp_path / "script", trusted=True) as editor:
        await editor.command("revertEverywhere", uri=editor.open(path), symbol="scale")
        await editor.until(lambda: editor.asked("workspace/applyEdit"))
        assert new_texts(editor.asked("workspace/applyEdit")[0]) == {"train.py": TRAIN, "other.py": TRAIN}


async def test_a_revert_without_uses_says_that_nothing_changes(tmp_path: Path) -> None:
    path = scripted(tmp_path)
    async with initialized(tmp_path, VSCODE, engine_script=tmp_path / "script", trusted=True) as editor:
        await editor.command("revertEverywhere", uri=editor.open(path), symbol="scale")
        (told,) = await editor.until(lambda: editor.said("window/showMessage"))
        assert told["message"] == "kernel-lsp: Revert scale at 0 call sites in 0 files: nothing to change"
