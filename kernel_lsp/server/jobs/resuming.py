"""Offer to go on with runs that did not finish."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from lsprotocol import types

from kernel_lsp.engine.messages import RunSummary
from kernel_lsp.server.jobs.starting import start_resume
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.protocol.rpc import ClientRefused

RESUME = "Resume"
RECENT = timedelta(days=7)
"""Maximum age of a run that is offered on opening. The lens of its target offers older ones."""


async def wants_to_resume(server: KernelLanguageServer, message: str) -> bool:
    """Ask the user; return False if the client refuses to."""
    actions = [types.MessageActionItem(title=RESUME)]
    params = types.ShowMessageRequestParams(type=types.MessageType.Warning, message=message, actions=actions)
    try:
        chosen = await server.window_show_message_request_async(params)
    except ClientRefused:
        return False
    return chosen is not None and chosen.title == RESUME


async def offer_interrupted(server: KernelLanguageServer, workspace: Path) -> None:
    """Offer the newest run of the workspace, if it was interrupted, or queued when its window closed."""
    runs = server.knowledge.runs(workspace)
    newest = runs[0] if runs else None
    if newest is None or newest.status not in ("interrupted", "queued") or not _is_recent(newest):
        return
    began = "was interrupted" if newest.status == "interrupted" else "had not begun"
    message = f"The run of {newest.target} {began} when its window closed. Finished work is kept."
    if await wants_to_resume(server, message):
        start_resume(server, Path(newest.file).as_uri(), workspace, newest.run_id)


# --- below


def _is_recent(run: RunSummary) -> bool:
    return datetime.now(UTC) - datetime.fromisoformat(run.started) < RECENT
