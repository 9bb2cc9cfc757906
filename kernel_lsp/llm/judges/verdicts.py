"""Judgements of candidates."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.model import Noun

JudgeName = Literal["compilation", "memory", "numerics"]
JUDGES: tuple[JudgeName, ...] = ("compilation", "memory", "numerics")


class Judgement(Noun):
    """`said` is the judge's own probability of no fault of its kind, `probability` the calibrated one."""

    judge: JudgeName
    model: str
    said: float
    probability: float
    request_key: str
    prompt_hash: str


class NoJudgement(Noun):
    """The judge gave no readable answer, and is not counted."""

    judge: JudgeName
    model: str
    problem: str
