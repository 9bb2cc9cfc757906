"""Estimates that are made anew by themselves, since the settings that they were made with hold no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_lsp.config import Settings
from kernel_lsp.server.commands import start_estimate

if TYPE_CHECKING:
    from kernel_lsp.server.language_server import KernelLanguageServer

DEPENDED_ON = ("target_gpu", "python", "cuda_directory", "capture_deadline_s", "memory_limit_bytes", "sandbox")
"""Settings that an estimate, or whether there is one, depends on."""


def are_alike(one: Settings, other: Settings) -> bool:
    """Whether an estimate that was made with the one is as good with the other."""
    return all(getattr(one, name) == getattr(other, name) for name in DEPENDED_ON)


def renew_estimates(server: KernelLanguageServer) -> None:
    """Forget those that hold no more, and begin to make them anew: nobody can tell a client to ask for a hover again,
    so the answer should be there when it does."""
    for uri, symbol, made_with in server.knowledge.settings_of_estimates():
        document = server.documents.get(uri)
        if document is None:
            continue
        settings = server.settings_for(document.file)
        if are_alike(made_with, settings):
            continue
        server.knowledge.forget_estimate(uri, symbol)
        is_there = server.analyses.latest(document).analysis.target(symbol) is not None
        if is_there and settings.estimate_on_hover and server.trust.allows_background_work:
            start_estimate(server, document, symbol, is_quiet=True)
