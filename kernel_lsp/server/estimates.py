"""Re-estimate targets whose settings have changed."""

from __future__ import annotations

from kernel_lsp.server.jobs.starting import start_estimate
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.settings import are_alike


def renew_estimates(server: KernelLanguageServer) -> None:
    """Drop outdated estimates and recompute them: the protocol cannot refresh an open hover, so the answer must be
    ready when the client asks again."""
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
