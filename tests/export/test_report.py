"""The HTML page of a run: one file that loads nothing, and shows what is in the report."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.verdict import BuildFailed, Crashed, Verdict
from kernel_lsp.export.report import ReportCandidate, RunReport, render_report

NASTY = "</script><img src=x onerror=alert(1)> {{script}} <!--"


def _report(**changes: object) -> RunReport:
    verdict = Verdict(candidate_id="c1", device="PTX executor (CPU)", outcome=Crashed(message=NASTY))
    candidate = ReportCandidate(candidate_id="c1", generation=0, proposer="generator", text=NASTY, verdicts=(verdict,))
    fields = {"run_id": "r1", "target": f"m.py::{NASTY}", "status": "running", "started": "2026-01-01T00:00:00"}
    return RunReport.model_validate({**fields, "n_generations": 2, "candidates": (candidate,), **changes})


def _data(page: str) -> str:
    return _element(page, "data")


def _element(page: str, name: str) -> str:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_data_in_the_page_is_the_report() -> None:
    report = _report()
    assert RunReport.model_validate(json.loads(_data(render_report(report)))) == report


def test_what_a_candidate_says_cannot_become_markup() -> None:
    page = render_report(_report())
    assert page.count("</script>") == 3
    assert "<img" not in page


def test_the_page_loads_nothing_from_anywhere() -> None:
    page = render_report(_report(target="m.py::f"))
    ours = page.replace(_data(page), "").replace(_element(page, "summary"), "")
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(|\bfetch\(|XMLHttpRequest""", ours)


def test_what_is_parsed_before_the_first_paint_does_not_grow_with_the_texts() -> None:
    candidate = ReportCandidate(candidate_id="c1", generation=0, proposer="generator", text="x" * 100_000)
    small, large = (_report(candidates=(each,)) for each in (candidate.model_copy(update={"text": ""}), candidate))
    assert _element(render_report(small), "summary") == _element(render_report(large), "summary")


def test_the_summary_says_why_a_candidate_did_not_compile() -> None:
    finding = Finding(code="nvrtc", message="expected a ;", severity="error", source="compiler")
    verdict = Verdict(candidate_id="c1", device="PTX executor (CPU)", outcome=BuildFailed(findings=(finding,)))
    candidate = ReportCandidate(candidate_id="c1", generation=0, proposer="generator", text="", verdicts=(verdict,))
    summary = json.loads(_element(render_report(_report(candidates=(candidate,))), "summary"))
    assert summary["candidates"][0]["verdicts"][0]["outcome"] == {"kind": "build_failed", "message": "expected a ;"}


def test_the_whole_report_stands_after_the_script_that_paints_first() -> None:
    page = render_report(_report())
    assert page.index('id="summary"') < page.index("<script>") < page.index('id="data"')


def test_the_policy_allows_this_style_and_this_script_alone() -> None:
    page = render_report(_report(target="m.py::f"))
    policy = html.unescape(page.split('Content-Security-Policy" content="')[1].split('"')[0])
    assert policy.startswith("default-src 'none'")
    for part in (page.split("<style>")[1].split("</style>")[0], page.split("<script>")[1].split("</script>")[0]):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
