"""Render a run's results as one offline HTML page: `kernel-lsp report RUN --html`, and the run panel of an editor.

The page embeds its data as JSON, its style and its script, and loads nothing else: its content security policy names
the hashes of its own two parts and forbids everything else. The data is embedded twice: a small summary before the
script, which is all that the first paint needs, and the whole report after it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kernel_lsp.core.event import Event
from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.recommendation import Recommendation
from kernel_lsp.core.verdict import BuildFailed, Correct, Verdict

PARTS = Path(__file__).parent / "report_page"
SCRIPTS = ("words.js", "parts.js", "chart.js", "lineage.js", "code.js", "page.js")
"""Scripts of the page in load order: each uses earlier ones."""


class ReportCandidate(Noun):
    """One candidate with every verdict on it, in the order reached. `proposer` is the model, or the generator."""

    candidate_id: str
    generation: int
    proposer: str
    description: str = ""
    operator: str = ""
    parents: tuple[str, ...] = ()
    schedule: dict[str, int | str] = {}
    text: str
    verdicts: tuple[Verdict, ...] = ()


class ReportFile(Noun):
    """A file that the run would write. `path` is absolute; `before` is its current content, empty when there is
    none."""

    path: str
    text: str
    before: str = ""


class RunReport(Noun):
    """Content of the page. `events` are those that no verdict repeats."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    target: str
    name: str = ""
    status: str
    started: str
    device: str = ""
    target_gpu: str = ""
    summary: str = ""
    configurations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    n_generations: int
    candidates: tuple[ReportCandidate, ...] = ()
    winner_id: str | None = None
    reason: str = ""
    stopped: str = ""
    comparisons: dict[str, Comparison] = {}
    recommendation: Recommendation | None = None
    library_steps: tuple[str, ...] = ()
    floor_us: float | None = None
    """Roofline bound on `target_gpu` in us: the time to move inputs and outputs once, or of the arithmetic. None where
    no GPU or task is known."""
    elapsed_s: float = 0.0
    cost_usd: float = 0.0
    """Cost of the model calls whose price is known, in US dollars."""
    n_model_calls: int = 0
    events: tuple[Event, ...] = ()
    files: tuple[ReportFile, ...] = ()


def render_report(report: RunReport) -> str:
    """Render the page as one text."""
    style, script = _part("page.css"), "\n".join(_part(name) for name in SCRIPTS)
    pieces = {
        "{{policy}}": content_policy(style, script),
        "{{title}}": html.escape(f"{report.target}, run {report.run_id}"),
        "{{style}}": style,
        "{{summary}}": _embedded(json.dumps(_summary(report))),
        "{{script}}": script,
        "{{data}}": _embedded(report.model_dump_json()),
    }
    return _filled(_part("page.html"), pieces)


def render_bench(title: str, body: str, data_json: str) -> str:
    """Render a benchmark's page: a body without scripts, and its data as JSON."""
    style = _part("page.css") + _part("bench.css")
    pieces = {
        "{{policy}}": content_policy(style),
        "{{title}}": html.escape(title),
        "{{style}}": style,
        "{{body}}": body,
        "{{data}}": _embedded(data_json),
    }
    return _filled(_part("bench.html"), pieces)


def content_policy(style: str, script: str = "") -> str:
    """Return the content security policy, escaped for an attribute: this style and this script alone."""
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    return html.escape(f"default-src 'none'; style-src '{_hash(style)}'; {scripts}base-uri 'none'", quote=True)


_SUMMARIZED_NUMBER: Any = {"time_us", "kind"}
_SUMMARIZED_VERDICT: Any = {
    "depth": True,
    "device": True,
    "outcome": {"kind", "message"},
    "estimate": _SUMMARIZED_NUMBER,
    "measurement": _SUMMARIZED_NUMBER,
}
_LEFT_OUT = {"text", "verdicts", "schedule"}


def _summary(report: RunReport) -> dict[str, Any]:
    """Return the JSON of the first paint: the row of each candidate, and one verdict's reference times. Its size does
    not depend on texts, cases or findings, which come with the whole report."""
    summary = report.model_dump(mode="json", exclude={"candidates", "events", "files"})
    summary["candidates"] = [
        candidate.model_dump(mode="json", exclude=_LEFT_OUT)
        | {"verdicts": [_summarized(verdict) for verdict in candidate.verdicts]}
        for candidate in report.candidates
    ]
    summary["times"] = _reference_times(report)
    return summary


def _summarized(verdict: Verdict) -> dict[str, Any]:
    """Return the outcome's one-line part: a number of cases, and the first finding of a failed build."""
    summary = verdict.model_dump(mode="json", include=_SUMMARIZED_VERDICT)
    outcome = summary["outcome"]
    if isinstance(verdict.outcome, Correct):
        outcome["n_cases"] = len(verdict.outcome.cases)
    elif isinstance(verdict.outcome, BuildFailed) and verdict.outcome.findings:
        outcome["message"] = verdict.outcome.findings[0].message
    return summary


def _reference_times(report: RunReport) -> dict[str, Any]:
    """Return the times of the first verdict that has any. An unfinished run has them nowhere else."""
    verdicts = (verdict for candidate in report.candidates for verdict in candidate.verdicts if verdict.times)
    first = next(verdicts, None)
    return first.model_dump(mode="json", include={"times"})["times"] if first is not None else {}


@cache
def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(json_text: str) -> str:
    """Return JSON that can neither close its element nor open a comment: ``<`` is escaped, and occurs in strings
    alone."""
    return json_text.replace("<", "\\u003c")


def _filled(template: str, pieces: dict[str, str]) -> str:
    """Replace each mark once, in order, so that marks inside inserted text stay unchanged."""
    parts: Sequence[str] = [template]
    for mark, text in pieces.items():
        before, _, after = parts[-1].partition(mark)
        parts = [*parts[:-1], before, text, after]
    return "".join(parts)
