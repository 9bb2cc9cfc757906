"""Build the extensions of one foreign kernel. Builds start before a GPU is open, and are refused for forbidden
contents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import BuildFailed, Rejected, TimedOut
from kernel_lsp.process.interpreter import site_packages
from kernel_lsp.toolchain.extension.build import ExtensionBuilder
from kernel_lsp.toolchain.extension.facts import ExtensionBuilt, ExtensionFacts, KeptFacts
from kernel_lsp.toolchain.extension.tools import ExtensionTools, find_extension_tools, symbol_findings
from kernel_lsp.toolchain.integrity.refused_text import extension_findings
from kernel_lsp.verify.model.progress import Progress
from kernel_lsp.verify.session.session import Session

FACTS_DEADLINE_S = 60.0

BuildFailure = BuildFailed | TimedOut


class ForeignBuilds:
    """Builds of one foreign kernel. The search for tools starts at once; `close` cancels what nothing awaited."""

    def __init__(self, session: Session, stack: AsyncExitStack) -> None:
        """Call from within a running event loop. Builders end with the stack."""
        self._session, self._stack = session, stack
        self._looking = asyncio.ensure_future(asyncio.gather(self._facts(), find_extension_tools()))
        self._building: list[asyncio.Task[ExtensionBuilt | BuildFailure]] = []
        self._builders: dict[str, ExtensionBuilder] = {}

    def begin(self, text: str, suffix: str, architecture: str) -> asyncio.Task[ExtensionBuilt | BuildFailure]:
        """Build one text. Raises EnvironmentProblem when awaited, without a compiler."""
        self._building.append(asyncio.create_task(self._build(text, suffix, architecture)))
        return self._building[-1]

    async def close(self) -> None:
        """Cancel the builds that are still under way."""
        under_way: list[asyncio.Future[Any]] = [self._looking, *self._building]
        for each in under_way:
            each.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    # --- below

    async def _facts(self) -> ExtensionFacts:
        """Return the interpreter's facts, from the cache where known. The worker answers only after importing torch,
        which takes longer than most of a build."""
        python = self._session.worker.python
        kept = KeptFacts(self._session.settings.cache_directory, python, site_packages(python))
        known = kept.find()
        if known is not None:
            return known
        facts = ExtensionFacts(**await self._session.worker.ask("extension_facts", {}, deadline_s=FACTS_DEADLINE_S))
        kept.keep(facts)
        return facts

    async def _build(self, text: str, suffix: str, architecture: str) -> ExtensionBuilt | BuildFailure:
        if findings := extension_findings(text, f"kernel{suffix}"):
            return BuildFailed(findings=findings)
        facts, tools = await asyncio.shield(self._looking)
        if architecture not in self._builders:
            builder = self._builder(facts, tools, architecture)
            self._builders[architecture] = builder
            await self._stack.enter_async_context(builder)
        return await self._builders[architecture].build(text, f"kernel{suffix}")

    def _builder(self, facts: ExtensionFacts, tools: ExtensionTools, architecture: str) -> ExtensionBuilder:
        return ExtensionBuilder(
            facts,
            tools,
            self._session.settings.cache_directory,
            python=self._session.worker.python,
            architecture=architecture,
            level=self._session.sandbox,
        )


def accepted_build(
    built: ExtensionBuilt | BuildFailure, progress: Progress
) -> ExtensionBuilt | BuildFailure | Rejected:
    """Return a build that may be loaded, or the reason why not. Its findings and notes are kept."""
    if not isinstance(built, ExtensionBuilt):
        return built
    findings = symbol_findings(built.undefined_symbols)
    progress.add_findings(finding for finding in findings if finding.severity is not Severity.ERROR)
    progress.notes += built.notes
    for stage, elapsed_s in built.stages_s.items():
        progress.notes.append(f"build: {stage} {elapsed_s:.2f} s ({built.how}, header {built.header})")
    return refused(findings) or built


def refused(findings: Sequence[Finding]) -> Rejected | None:
    """Return a rejection for the first error among the findings; None without one."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return Rejected(message=errors[0].message, findings=tuple(errors)) if errors else None
