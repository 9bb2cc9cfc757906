"""A check that could not begin says so where its findings would stand, also when nobody asked for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernel_lsp.config import Settings
from kernel_lsp.engine.messages import Check, Problem, Reply
from kernel_lsp.server.documents.documents import Documents
from kernel_lsp.server.jobs.job_results import job_ended
from kernel_lsp.server.jobs.jobs import Job
from kernel_lsp.server.knowledge import Knowledge

from .samples import KERNEL

FILE = Path("/w/scale.cu")
URI = FILE.as_uri()


async def ended(problem: Problem) -> Knowledge:
    """Return what is known after a check on save that ended so."""
    documents, knowledge = Documents("utf-16"), Knowledge()
    documents.open(URI, "cuda", 1, KERNEL)
    server: Any = SimpleNamespace(
        documents=documents, knowledge=knowledge, knowledge_changed=lambda _: None, settings_for=lambda _: Settings()
    )
    request = Check(id="1", directory=FILE.parent, kernel=FILE)
    nobody: Any = None  # to tell of progress
    job = Job(request, "Check", URI, FILE.parent, nobody, nobody, is_quiet=True)
    await job_ended(server, job, Reply(id="1", error=problem))
    return knowledge


async def test_the_user_learns_why_and_what_to_do() -> None:
    knowledge = await ended(Problem(kind="user", message="there is no such file", next_step="check the path"))
    check = knowledge.check(URI)
    assert check is not None
    assert check.verdict.outcome.kind == "unsupported"
    assert check.verdict.outcome.message == "there is no such file. Next: check the path"


async def test_a_cancelled_one_says_nothing() -> None:
    assert (await ended(Problem(kind="cancelled", message="cancelled"))).check(URI) is None


async def test_a_fault_of_ours_is_no_fact_about_the_kernel() -> None:
    assert (await ended(Problem(kind="internal", message="a bug"))).check(URI) is None
