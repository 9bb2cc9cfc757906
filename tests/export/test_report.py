"""The HTML page of a run: one file that loads nothing, and shows what is in the report."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re

from kernel_lsp.core.verdict import Crashed, Verdict
from kernel_lsp.export.report import ReportCandidate, RunReport, render_report

NASTY = "</script><img src=x onerror=alert(1)> {{script}} <!--"


def _report(**changes: object) -> RunReport:
    verdict = Verdict(candidate_id="c1", device="PTX executor (CPU)", outcome=Crashed(message=NASTY))
    candidate = ReportCandidate(candidate_id="c1", generation=0, proposer="generator", text=NASTY, verdicts=(verdict,))
    fields = {"run_id": "r1", "target": f"m.py::{NASTY}", "status": "running", "started": "2026-01-01T00:00:00"}
    return RunReport.model_validate({**fields, "n_generations": 2, "candidates": (candidate,), **changes})


def _data(page: str) -> str:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_data_in_the_page_is_the_report() -> None:
    report = _report()
    assert RunReport.model_validate(json.loads(_data(render_report(report)))) == report


def test_what_a_candidate_says_cannot_become_markup() -> None:
    page = render_report(_report())
    assert page.count("</script>") == 2
    assert "<img" not in page


def test_the_page_loads_nothing_from_anywhere() -> None:
    page = render_report(_report(target="m.py::f"))
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(|\bfetch\(|XMLHttpRequest""", page.replace(_data(page), ""))


def test_the_policy_allows_this_style_and_this_script_alone() -> None:
    page = render_report(_report(target="m.py::f"))
    policy = html.unescape(page.split('Content-Security-Policy" content="')[1].split('"')[0])
    assert policy.startswith("default-src 'none'")
    for part in (page.split("<style>")[1].split("</style>")[0], page.split("<script>")[1].split("</script>")[0]):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
