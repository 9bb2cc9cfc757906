"""Start the worker of a job before the job's process has imported what it needs, and keep it for the run that follows
an inference: on two busy cores importing PyTorch once more takes longer than the search.
"""

from __future__ import annotations

from kernel_lsp.config import Settings, load_settings
from kernel_lsp.engine.messages import EstimateTarget, InferInputs, JobRequest, Optimize
from kernel_lsp.verify.devices.device_names import parse_device
from kernel_lsp.verify.session.start import SessionStart, may_use_gpu


class StartAhead:
    """The start of the session of a process's jobs. Use as ``async with``."""

    def __init__(self) -> None:
        self._start: SessionStart | None = None

    async def __aenter__(self) -> StartAhead:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._start is not None:
            await self._start.__aexit__()

    async def of(self, request: JobRequest) -> SessionStart | None:
        """Return the entered start of a request that captures without a GPU, else None: such a session has a start of
        its own. Raises SettingError."""
        settings = _settings_of(request)
        if settings is None or (self._start is not None and not self._is_usable(self._start, settings)):
            await self.__aexit__()
            self._start = None
        if settings is not None and self._start is None:
            self._start = await SessionStart(settings).__aenter__()
        return self._start

    @staticmethod
    def _is_usable(start: SessionStart, settings: Settings) -> bool:
        worker = getattr(start, "worker", None)  # unset where no interpreter was found
        is_fresh = worker is not None and worker.is_alive and not worker.ran_user_code
        return start.settings == settings and is_fresh


def _settings_of(request: JobRequest) -> Settings | None:
    """Return the settings of a capture on the CPU; None where there is none. Raises SettingError."""
    if not isinstance(request, InferInputs | EstimateTarget | Optimize):
        return None
    settings = load_settings(request.directory, request.settings)
    may_be_on_gpu = parse_device(settings.device).is_remote or may_use_gpu(settings)
    if isinstance(request, Optimize) and may_be_on_gpu:
        return None
    return settings.model_copy(update={"device": "cpu"})
