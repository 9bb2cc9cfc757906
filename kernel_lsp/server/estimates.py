"""Estimates that are made anew by themselves, since the settings that they were made with hold no more."""

from __future__ import annotations

from kernel_lsp.server.jobs.starting import start_estimate
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.settings import are_alike


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
