"""What a rule is: its declaration, and the function that looks for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, Literal, TypeVar

from kernel_lsp.core.finding import Severity
from kernel_lsp.rules.finding import QuickFix, RuleFinding, TextRange

Language = Literal["pytorch", "cuda"]
SubjectKind = Literal["any", "kernel", "device", "host"]
"""``device`` is kernels and the functions that they call."""
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
    """A rule and the generator of its hits. `on` says what kind of subject it is for, where there are several; `needs`
    are texts of which a subject has at least one, or the rule finds nothing in it."""

    rule: Rule
    hits: Callable[[Subject], Iterator[Hit]]
    on: SubjectKind = "any"
    needs: tuple[str, ...] = ()

    def findings(self, subject: Subject) -> list[RuleFinding]:
        """The hits with what they have of the rule."""
        return [self._finding(hit) for hit in self.hits(subject)]

    def _finding(self, hit: Hit) -> RuleFinding:
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
    ) -> Callable[[Callable[[Subject], Iterator[Hit]]], Check[Subject]]:
        texts = (inspect.cleandoc(why), inspect.cleandoc(bad) + "\n", inspect.cleandoc(good) + "\n")
        rule = Rule(code, name, self.language, severity, summary, *texts)
        return lambda hits: Check(rule, hits, on, needs)


def checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    """Every check that the modules declare, in the order of their codes."""
    checks = [value for module in modules for value in vars(module).values() if isinstance(value, Check)]
    return tuple(sorted(checks, key=lambda check: check.rule.code))
