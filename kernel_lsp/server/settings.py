"""Settings in an editor: `kernel_lsp.config` overridden by the client's values, per folder and live; and whether a
workspace is trusted, so that user code may run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_lsp.config import Settings, load_settings
from kernel_lsp.errors import SettingError

SECTION = "kernelLsp"
"""Section of the client's configuration, with names in camelCase."""
OF_ESTIMATES = ("target_gpu", "python", "cuda_directory", "capture_deadline_s", "sandbox")
"""Settings that an estimate, or its failure, depends on."""
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_OVERRIDE_ORIGIN = "the command line"


@dataclass(frozen=True)
class _Read:
    """Settings of a folder, valid since its pyproject.toml was modified at `changed`. With an `error`, the previous
    settings.

    Only copies of `error` are raised: each raise would append a traceback frame with its locals, and this object lives
    until the setting is corrected.
    """

    changed: object
    settings: Settings
    error: SettingError | None = None


class EditorSettings:
    """The client's values, and each folder's settings with them. `on_change` is called when settings of a folder that
    was read before have changed, whatever the source. Changes are detected on the next read, or by `look`."""

    def __init__(self, initial: Mapping[str, Any], on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._everywhere = overrides_of(initial)
        self._of_folder: dict[Path, dict[str, Any]] = {}
        self._read: dict[Path, _Read] = {}

    def set_everywhere(self, values: Mapping[str, Any]) -> None:
        """Set the client's values for all folders without their own."""
        self._everywhere = overrides_of(values)
        self._read_again()

    def set_for(self, folder: Path, values: Mapping[str, Any]) -> None:
        """Set the client's values for a workspace folder."""
        self._of_folder[folder] = overrides_of(values)
        self._read_again()

    def forget(self, folder: Path) -> None:
        """Remove a folder that has left the workspace."""
        self._of_folder.pop(folder, None)
        self._read_again()

    def overrides(self, directory: Path) -> dict[str, Any]:
        """Return the client's values for files in `directory`: those of the innermost configured workspace folder."""
        folders = [folder for folder in self._of_folder if directory.is_relative_to(folder)]
        return self._of_folder[max(folders, key=lambda folder: len(folder.parts))] if folders else self._everywhere

    def of(self, directory: Path) -> Settings:
        """Return the settings for files in `directory`. Raises SettingError. A changed pyproject.toml takes effect at
        once."""
        read = self._now(directory)
        if read.error is not None:
            raise copy(read.error)
        return read.settings

    def latest(self, directory: Path) -> Settings:
        """Return the same; on an error the previous settings, or the defaults."""
        return self._now(directory).settings

    def look(self) -> None:
        """Detect changes in every folder that was read."""
        for directory in tuple(self._read):
            self._now(directory)

    def _now(self, directory: Path) -> _Read:
        known, changed = self._read.get(directory), _pyproject_changed(directory)
        if known is not None and known.changed == changed:
            return known
        before = known.settings if known is not None else Settings()
        try:
            read = _Read(changed, _load(directory, self.overrides(directory)))
        except SettingError as error:
            read = _Read(changed, before, copy(error))
        self._read[directory] = read
        if known is not None and known.settings != read.settings:
            self._on_change()
        return read

    def _read_again(self) -> None:
        self._read = {directory: replace(read, changed=None) for directory, read in self._read.items()}


def overrides_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are settings, by our names. An editor has others in the same section."""
    named = {_CAPITAL.sub("_", name).lower(): value for name, value in values.items() if isinstance(name, str)}
    return {name: value for name, value in named.items() if name in Settings.model_fields and value is not None}


def are_alike(one: Settings, other: Settings) -> bool:
    """Return True when an estimate under one is valid under the other."""
    return all(getattr(one, name) == getattr(other, name) for name in OF_ESTIMATES)


def _load(directory: Path, overrides: Mapping[str, Any]) -> Settings:
    try:
        return load_settings(directory, overrides)
    except SettingError as error:
        if error.file == _OVERRIDE_ORIGIN:
            error.file = f"the editor's settings ({SECTION}.*)"
        raise


def _pyproject_changed(directory: Path) -> object:
    """Return the nearest pyproject.toml and its modification time, equal while nothing has changed."""
    for folder in (directory, *directory.parents):
        with suppress(OSError):
            found = (folder / "pyproject.toml").stat()
            return folder, found.st_mtime_ns, found.st_size
    return ()


@dataclass
class Trust:
    """`said` is the client's answer, None until it gives one. An explicit command counts as consent in a workspace that
    was not declared untrusted; from then on background work may run, too."""

    said: bool | None = None
    has_been_asked: bool = False

    @property
    def allows_commands(self) -> bool:
        """Return True when explicitly requested commands may run."""
        return self.said is not False

    @property
    def allows_background_work(self) -> bool:
        """Return True when automatic work may run: a check on save, an estimate on hover."""
        return self.said is True or (self.said is None and self.has_been_asked)
