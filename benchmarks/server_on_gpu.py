"""Show an editor's view on a machine with a GPU: `python benchmarks/server_on_gpu.py [OUT.json] [--device auto|cpu]`.

A real server and a real engine, asked as an editor asks: a kernel is saved, profiled and measured, a measurement is
cancelled, and a PyTorch function becomes a kernel by the built-in generator. Each stage has a time limit of its own;
one that breaks or takes longer leaves the others their time. OUT.json is written anew after each. Without a GPU, or
with ``--device cpu``, it is a rehearsal: what needs a GPU is then not shown, and says so.

Exit 1 when something was not shown. Needs what the tests of the server need: pytest, pytest_lsp and pytest_asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.process.tree import descendants
from tests.server.client import VSCODE, Client, initialized

EXAMPLE = "row_softmax"
SETTINGS = {"measureOnSave": True, "generations": 1, "proposals": 2, "models": []}
"""No model is asked: the generator's proposals alone."""
BUDGET_S = 110.0
"""Seconds for all stages; `benchmarks/gpu_all.py` gives the program 120 s."""
CANCEL_S = 1.0
N_PROCESSES = 2
"""Processes of a measurement that is under way: its own and a worker."""
MEASURED = (" eager, ",)
"""As in "1.2x vs eager, H200" and "no different from eager, H200"."""
COMPARED = ("vs eager", "vs compile")
"""A search's winner waits for torch.compile; a kernel that was saved does not."""
Ask = Callable[[], Awaitable[Any]]


@dataclass
class Stage:
    """One thing that an editor shows. `missing` says what was not seen; empty when all was."""

    name: str
    limit_s: float
    elapsed_s: float = 0.0
    missing: str = "not begun"
    seen: dict[str, Any] = field(default_factory=dict)


@dataclass
class Session:
    """The editor with its two files."""

    editor: Client
    kernel: Path
    model: Path

    def jobs(self, kind: str, *states: str) -> list[str]:
        """The jobs of a kind that have been in one of the states, in order."""
        news = self.editor.said("kernelLsp/jobChanged")
        return [each["job"] for each in news if each["kind"] == kind and each["state"] in states]

    async def end_of(self, kind: str, job: str | None = None) -> str:
        """Return how a job ended: of this id, or the first of its kind."""
        ends = ("finished", "failed", "cancelled")

        def ended() -> str:
            news = self.editor.said("kernelLsp/jobChanged")
            mine = [n for n in news if n["kind"] == kind and n["state"] in ends and job in (None, n["job"])]
            return f"{mine[0]['state']} {mine[0].get('message', '')}".strip() if mine else ""

        return str(await self.editor.until(ended))

    async def lenses(self, path: Path) -> list[str]:
        return [lens["command"]["title"] for lens in await self.editor.at("codeLens", path.as_uri())]

    def messages(self) -> list[str]:
        return [told["message"] for told in self.editor.said("window/showMessage")]


# --- the stages: each fills what it saw, and returns what is missing


async def opened(session: Session, seen: dict[str, Any]) -> str:
    uri = session.editor.open(session.kernel)
    session.editor.open(session.model)
    seen["diagnostics"] = [found["message"] for found in await session.editor.diagnostics(uri)]
    await session.editor.until(lambda: session.editor.asked("workspace/configuration"))
    return ""


async def measured_on_save(session: Session, seen: dict[str, Any]) -> str:
    session.editor.tell("textDocument/didSave", {"textDocument": {"uri": session.kernel.as_uri()}})
    seen["ended"] = await session.end_of("check")
    seen["lens"] = await _lens_of_check(session)
    line = next(i for i, text in enumerate(session.kernel.read_text().splitlines()) if "__global__" in text)
    hover = await session.editor.at("hover", session.kernel.as_uri(), line, 4)
    seen["hover"] = hover["contents"]["value"] if hover else ""
    found = await session.editor.diagnostics(session.kernel.as_uri())
    seen["diagnostics"] = [f"{each.get('source')}: {each['message']}" for each in found]
    return _without(MEASURED, seen["lens"])


async def profiled(session: Session, seen: dict[str, Any]) -> str:
    uri = session.kernel.as_uri()
    job = await session.editor.command("profile", uri=uri)
    seen["ended"] = await session.end_of("profile", job["job"])
    seen["said"] = session.messages()[-1:]
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 999, "character": 0}}
    hints = await session.editor.ask("textDocument/inlayHint", {"textDocument": {"uri": uri}, "range": whole})
    seen["hints"] = [f"{hint['position']['line'] + 1}: {hint['label']}" for hint in hints]
    lines = [hint["position"]["line"] for hint in hints]
    hovers = [await session.editor.at("hover", uri, line, 4) for line in lines[:1]]
    seen["hover"] = [hover["contents"]["value"] for hover in hovers if hover]
    is_measured = any("Measured on" in text for text in seen["hover"])
    return ("" if hints else "hints on lines; ") + ("" if is_measured else "a profile that was measured")


async def measured_now(session: Session, seen: dict[str, Any]) -> str:
    actions = await session.editor.at("codeAction", session.kernel.as_uri())
    seen["actions"] = [action["title"] for action in actions]
    if "Measure now" not in seen["actions"]:
        return "the action `Measure now`"
    job = await session.editor.command("measure", uri=session.kernel.as_uri())
    seen["ended"] = await session.end_of("check", job["job"])
    seen["lens"] = await _lens_of_check(session)
    seen["said"] = session.messages()[-1:]
    return _without(MEASURED, seen["lens"])


async def cancelled(session: Session, seen: dict[str, Any]) -> str:
    """The processes of a measurement under way are gone a second after its progress was cancelled."""
    titles = [action["title"] for action in await session.editor.at("codeAction", session.kernel.as_uri())]
    seen["command"] = "measure" if "Measure now" in titles else "check"
    seen["job"] = job = (await session.editor.command(seen["command"], uri=session.kernel.as_uri()))["job"]
    begun = [p["token"] for p in session.editor.said("$/progress") if p["value"]["kind"] == "begin"]
    (engine,) = (await session.editor.ask("kernelLsp/status", {}))["enginePids"]
    while len(running := descendants(engine)) < N_PROCESSES or job not in session.jobs("check", "running"):
        if job in session.jobs("check", "finished", "failed"):
            return "a measurement that is still under way: it had ended"
        await asyncio.sleep(0.02)
    tokens = [p["token"] for p in session.editor.said("$/progress") if p["value"]["kind"] == "begin"]
    seen["n_processes"] = len(running)
    started = time.monotonic()
    session.editor.tell("window/workDoneProgress/cancel", {"token": (tokens or begun)[-1]})
    while any(_is_there(pid) for pid in running):
        await asyncio.sleep(0.01)
    seen["gone_after_s"] = round(time.monotonic() - started, 3)
    seen["ended"] = await session.end_of("check", job)
    is_cancelled = seen["ended"].startswith("cancelled") and seen["gone_after_s"] <= CANCEL_S
    return "" if is_cancelled else f"the end of all processes within {CANCEL_S:g} s"


async def optimized(session: Session, seen: dict[str, Any]) -> str:
    """By the generator; the result is in the lens of the function."""
    job = await session.editor.command("optimize", uri=session.model.as_uri(), symbol=EXAMPLE)
    seen["ended"] = await session.end_of("optimize", job["job"])
    edits = await session.editor.until(lambda: session.editor.asked("workspace/applyEdit"))
    seen["edit"] = edits[-1].get("label", "")
    seen["lenses"] = await session.lenses(session.model)
    result = next((title for title in seen["lenses"] if "verified" in title), "")
    return _without(("verified", *COMPARED), result)


STAGES: tuple[tuple[Callable[[Session, dict[str, Any]], Awaitable[str]], float], ...] = (
    (opened, 10.0),
    (measured_on_save, 26.0),
    (profiled, 40.0),
    (measured_now, 10.0),
    (cancelled, 8.0),
    (optimized, 60.0),
)
"""With the most that each may take. A capture takes some 8 s on the machine with the H200, a warm verdict 1 to 3 s."""


def main() -> int:
    options = _options()
    started = time.monotonic()
    stages = [Stage(name=act.__name__, limit_s=limit_s) for act, limit_s in STAGES]
    _write(options.out, stages)
    try:
        asyncio.run(_all(options, stages, started + options.budget_s))
    except Exception as error:  # the server did not start, or died: what was seen by then is the result
        print(f"the session ended: {type(error).__name__}: {error}", file=sys.stderr)
    _write(options.out, stages)
    print(f"{time.monotonic() - started:.1f} s in all", flush=True)
    return int(any(stage.missing for stage in stages))


# --- below: the session


async def _all(options: argparse.Namespace, stages: list[Stage], ending: float) -> None:
    settings = {**SETTINGS, "device": options.device}
    answers = {
        "workspace/configuration": lambda params: [settings for _ in params["items"]],
        "workspace/applyEdit": lambda _: {"applied": True},
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / ".kernel-lsp").mkdir()
        for suffix in ("py", "cu"):
            (root / f"{EXAMPLE}.{suffix}").write_text((ROOT / "examples" / f"{EXAMPLE}.{suffix}").read_text())
        async with initialized(root, VSCODE, answers, trusted=True) as editor:
            session = Session(editor, root / f"{EXAMPLE}.cu", root / f"{EXAMPLE}.py")
            for (act, _), stage in zip(STAGES, stages, strict=True):
                await _do(act, stage, session, ending)
                print(f"--- {json.dumps(asdict(stage), indent=1)}", flush=True)
                _write(options.out, stages)


async def _do(
    act: Callable[[Session, dict[str, Any]], Awaitable[str]], stage: Stage, session: Session, ending: float
) -> None:
    started = time.monotonic()
    limit_s = max(min(stage.limit_s, ending - started), 0.0)
    try:
        async with asyncio.timeout(limit_s):
            stage.missing = await act(session, stage.seen)
    except TimeoutError:
        stage.missing = f"the rest: cut short after {limit_s:.0f} s"
    except Exception as error:  # a stage that breaks says how, and the others are still to be shown
        stage.missing = f"the rest: {type(error).__name__}: {error}"
    stage.elapsed_s = round(time.monotonic() - started, 1)
    if stage.missing:
        news = session.editor.said("kernelLsp/jobChanged")[-1:]
        stage.seen |= {"last_of_jobs": news, "last_messages": session.messages()[-3:]}


async def _lens_of_check(session: Session) -> str:
    titles = await session.lenses(session.kernel)
    return next((title for title in titles if title.startswith("Check now: ")), "")


def _without(words: tuple[str, ...], text: str) -> str:
    missing = [word for word in words if word not in text]
    return f"{', '.join(missing)} in {text!r}" if missing else ""


def _is_there(pid: int) -> bool:
    """A zombie is none: it has ended, and only its parent has not yet asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _write(out: Path | None, stages: list[Stage]) -> None:
    """The stages, and in front of them the figures that a table shows."""
    seen = {stage.name: stage for stage in stages}
    result = {
        "lens": seen["measured_on_save"].seen.get("lens", ""),
        "measured_s": seen["measured_on_save"].elapsed_s,
        "hints": seen["profiled"].seen.get("hints", []),
        "gone_after_s": seen["cancelled"].seen.get("gone_after_s"),
        "optimized": [title for title in seen["optimized"].seen.get("lenses", []) if "verified" in title],
        "missing": {stage.name: stage.missing for stage in stages if stage.missing},
        "stages": [asdict(stage) for stage in stages],
    }
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
