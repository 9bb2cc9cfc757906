"""While a search goes on, the worker makes the cases of the full check that follows: it has nothing else to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session import pipeline
from kernel_lsp.verify.session.session import Session

from .fake_sessions import TEXT, install, settings


@pytest.mark.parametrize(("n_processors", "is_ahead"), [(16, True), (2, False)])
async def test_a_full_check_finds_its_cases_made_where_there_are_processors_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_processors: int, is_ahead: bool
) -> None:
    asked, make_case = list[str](), Worker.make_case

    async def counted(self: Worker, operation: Any, *, family: str, **others: Any) -> CaseFiles:
        asked.append(family)
        return await make_case(self, operation, family=family, **others)

    install(tmp_path, monkeypatch)
    monkeypatch.setattr(Worker, "make_case", counted)
    monkeypatch.setattr(pipeline.os, "cpu_count", lambda: n_processors)
    candidate = Candidate(text=TEXT, origin=Origin(proposer="user"))
    async with Session(settings(tmp_path)) as own:
        source = read_target("task.py::affine", tmp_path)
        verifier = await own.verifier(source, await own.capture(source, with_backward=False))
        evaluator = verifier._evaluator
        assert (await verifier.verify(candidate, "rank")).is_correct
        if evaluator._ahead is not None:
            await evaluator._ahead
        await evaluator.store.idle()
        n_ranked = len(asked)
        assert (await verifier.verify(candidate, "full")).is_correct
    assert (n_ranked > 20) == is_ahead
    assert (len(asked) - n_ranked < 5) == is_ahead  # those of mutated scalars are of another task
