"""Archive the runs that wait for their turn, so that they are offered again if the engine ends first."""

from __future__ import annotations

from kernel_lsp.engine.messages import Optimize, Resume
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.archive import Archive


def keep_queued(request: Optimize) -> Optimize | Resume:
    """Archive the run as queued; return the request that starts it. A request that cannot run is returned as it is: its
    job reports the error."""
    from kernel_lsp.engine.work import handle_of  # not at the top: it takes most of a second

    try:
        handle = handle_of(request)
        with Archive(handle.workspace) as archive:
            run_id = archive.start_run(handle.target, handle.request.model_dump(mode="json"), status="queued")
    except KernelLspError:
        return request
    has_model = request.has_editor_model
    return Resume(id=request.id, directory=handle.workspace, run_id=run_id, has_editor_model=has_model)


def drop_queued(request: Resume) -> None:
    """Forget a run that was cancelled before it began."""
    with Archive(request.directory) as archive:
        archive.drop_queued(request.run_id)
