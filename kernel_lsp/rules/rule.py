"""Define a rule: its declaration and the function that checks for it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Generic, Literal, TypeVar

from kernel_lsp.core.finding import Severity
from kernel_lsp.rules.finding import QuickFix, RuleFinding, TextRange

Language = Literal["pytorch", "cuda"]
SubjectKind = Literal["any", "kernel", "device", "host", "forward"]
"""Kinds of subject. ``device`` covers kernels and the functions that they call; ``forward`` covers code that runs at
each step of a model."""
Subject = TypeVar("Subject")
"""The analysed file, function or kernel that a check receives."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as its documentation shows it. `bad` and `good` are whole files; the rule reports only `bad`."""

    code: str
    name: str
    language: Language
    severity: Severity
    summary: str
    why: str
    bad: str
    good: str

    @property
    def documentation(self) -> str:
        """Project-relative path of the rule's page, with the rule's anchor."""
        return f"docs/rules/{self.language}.md#{self.code.lower()}"


@dataclass(frozen=True, slots=True)
class Hit:
    """One location that a check found. `severity` is set where it differs from the rule's."""

    range: TextRange
    message: str
    fixes: tuple[QuickFix, ...] = ()
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """A rule and its generator of hits, in source order. `on` selects the kind of subject where there are several. A
    subject can violate the rule only if it contains a word of each text in `needs` and matches `patterns` one after
    the other. Most subjects fail this filter and need not be parsed."""

    rule: Rule
    hits: Callable[[Subject], Iterator[Hit]]
    on: SubjectKind = "any"
    needs: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()

    def may_find_in(self, text: str, ends: dict[re.Pattern[str], int] | None = None) -> bool:
        """Return whether the patterns match one after the other. Separate searches take linear time; one joined
        pattern would backtrack over all combinations. `ends` caches the end of each pattern's first match in this
        text, -1 without one."""
        ends = {} if ends is None else ends
        end = 0
        for index, pattern in enumerate(self.patterns):
            if index:
                end = _end_of(pattern, text, end)
            elif pattern in ends:
                end = ends[pattern]
            else:
                end = ends[pattern] = _end_of(pattern, text, 0)
            if end < 0:
                return False
        return True

    def findings(self, subject: Subject, at_most: int | None = None) -> list[RuleFinding]:
        """Return the first findings in a subject, completed with the rule's fields."""
        return [self.finding(hit) for hit in islice(self.hits(subject), at_most)]

    def finding(self, hit: Hit) -> RuleFinding:
        """Return the finding of a hit, completed with the rule's fields."""
        rule = self.rule
        severity = hit.severity or rule.severity
        return RuleFinding(rule.code, rule.name, severity, hit.message, hit.range, rule.documentation, hit.fixes)


class Declare:
    """Declare rules of one language by decorator:
    ``@declare("KL101", "name", severity, summary=..., why=..., ...)``."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def __call__(
        self,
        code: str,
        name: str,
        severity: Severity,
        *,
        summary: str,
        why: str,
        bad: str,
        good: str,
        on: SubjectKind = "any",
        needs: tuple[str, ...] = (),
        patterns: tuple[str, ...] = (),
    ) -> Callable[[Callable[[Subject], Iterator[Hit]]], Check[Subject]]:
        texts = (inspect.cleandoc(why), inspect.cleandoc(bad) + "\n", inspect.cleandoc(good) + "\n")
        rule = Rule(code, name, self.language, severity, summary, *texts)
        searched = tuple(map(re.compile, patterns))
        return lambda hits: Check(rule, hits, on, needs, searched)


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of the pattern's next match, -1 without one."""
    place = pattern.search(text, start)
    return -1 if place is None else place.end()


def checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    """Return every check that the modules declare, in code order."""
    checks = [value for module in modules for value in vars(module).values() if isinstance(value, Check)]
    return tuple(sorted(checks, key=lambda check: check.rule.code))


def words(text: str) -> frozenset[str]:
    """Return the whitespace-separated words of `text`."""
    return frozenset(text.split())
