"""What a rule is: its declaration, and the function that looks for it."""

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
"""``device`` is kernels and the functions that they call, ``forward`` what a model runs at each step."""
Subject = TypeVar("Subject")
"""What a check looks at: an analysed file, function or kernel."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as its documentation shows it. `bad` and `good` are whole files: it finds something in the first alone."""

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
        """Path of the page with the rule's anchor, from the project's root."""
        return f"docs/rules/{self.language}.md#{self.code.lower()}"


@dataclass(frozen=True, slots=True)
class Hit:
    """One place that a check found. `severity` is given where it is not the rule's."""

    range: TextRange
    message: str
    fixes: tuple[QuickFix, ...] = ()
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """A rule and the generator of its hits, in the order of the text. `on` says what kind of subject it is for, where
    there are several. A subject has one of the words of each text in `needs`, and a place for each of
    `patterns` behind the one before, or the rule finds nothing in it: most subjects need then not be read at all."""

    rule: Rule
    hits: Callable[[Subject], Iterator[Hit]]
    on: SubjectKind = "any"
    needs: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()

    def may_find_in(self, text: str, ends: dict[re.Pattern[str], int] | None = None) -> bool:
        """Whether the patterns have their places. One search after the other takes a walk over the text; a pattern with
        all of them in it would try each place with each. `ends` is where the first place of a pattern ends, -1 without
        one, as far as it was looked for in this text."""
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
        """The first hits, with what they have of the rule."""
        return [self.finding(hit) for hit in islice(self.hits(subject), at_most)]

    def finding(self, hit: Hit) -> RuleFinding:
        """The hit with what it has of the rule."""
        rule = self.rule
        severity = hit.severity or rule.severity
        return RuleFinding(rule.code, rule.name, severity, hit.message, hit.range, rule.documentation, hit.fixes)


class Declare:
    """Decorator factory of one language: ``@declare("KL101", "name", severity, summary=..., why=..., ...)``."""

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
    """Where the next place of the pattern ends, -1 without one."""
    place = pattern.search(text, start)
    return -1 if place is None else place.end()


def checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    """Every check that the modules declare, in the order of their codes."""
    checks = [value for module in modules for value in vars(module).values() if isinstance(value, Check)]
    return tuple(sorted(checks, key=lambda check: check.rule.code))
