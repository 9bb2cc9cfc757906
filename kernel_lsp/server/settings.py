"""Settings in an editor: what `kernel_lsp.config` reads, with the client's own values on top, per folder and live."""

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
"""Of the client's configuration; names in it are camelCase."""
OF_ESTIMATES = ("target_gpu", "python", "cuda_directory", "capture_deadline_s", "memory_limit_bytes", "sandbox")
"""Settings that an estimate, or whether there is one, depends on."""
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_OVERRIDE_ORIGIN = "the command line"


@dataclass(frozen=True)
class _Read:
    """What holds in a folder since its pyproject.toml was as `changed` says. With an `error`, what held before.

    The `error` itself is never raised, only copies of it are: each time that an error is raised it remembers one more
    place in the code, with everything that was at hand there, and this one lives as long as the setting is wrong."""

    changed: object
    settings: Settings
    error: SettingError | None = None


class EditorSettings:
    """The client's values, and the settings of any folder with them. `on_change` is called when those of a folder that
    was asked for before are others by now, whoever changed them. That is found out when they are asked for again, or
    with `look`."""

    def __init__(self, initial: Mapping[str, Any], on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._everywhere = overrides_of(initial)
        self._of_folder: dict[Path, dict[str, Any]] = {}
        self._read: dict[Path, _Read] = {}

    def set_everywhere(self, values: Mapping[str, Any]) -> None:
        """The client's values for all folders that have none of their own."""
        self._everywhere = overrides_of(values)
        self._read_again()

    def set_for(self, folder: Path, values: Mapping[str, Any]) -> None:
        """The client's values for a workspace folder."""
        self._of_folder[folder] = overrides_of(values)
        self._read_again()

    def forget(self, folder: Path) -> None:
        """The folder has left the workspace."""
        self._of_folder.pop(folder, None)
        self._read_again()

    def overrides(self, directory: Path) -> dict[str, Any]:
        """What the client says for files in `directory`: the innermost workspace folder with values counts."""
        folders = [folder for folder in self._of_folder if directory.is_relative_to(folder)]
        return self._of_folder[max(folders, key=lambda folder: len(folder.parts))] if folders else self._everywhere

    def of(self, directory: Path) -> Settings:
        """The settings for files in `directory`. Raises SettingError. A changed pyproject.toml counts at once."""
        read = self._now(directory)
        if read.error is not None:
            raise copy(read.error)
        return read.settings

    def latest(self, directory: Path) -> Settings:
        """The same; where they cannot be read now those before, or the defaults."""
        return self._now(directory).settings

    def look(self) -> None:
        """Find out what has changed of all that was asked for."""
        for directory in tuple(self._read):
            self._now(directory)

    # --- below

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
    """The values that are settings, by our names. An editor has others beside them."""
    named = {_CAPITAL.sub("_", name).lower(): value for name, value in values.items() if isinstance(name, str)}
    return {name: value for name, value in named.items() if name in Settings.model_fields and value is not None}


def are_alike(one: Settings, other: Settings) -> bool:
    """Whether an estimate that was made with the one is as good with the other."""
    return all(getattr(one, name) == getattr(other, name) for name in OF_ESTIMATES)


# --- below


def _load(directory: Path, overrides: Mapping[str, Any]) -> Settings:
    try:
        return load_settings(directory, overrides)
    except SettingError as error:
        if error.file == _OVERRIDE_ORIGIN:
            error.file = f"the editor's settings ({SECTION}.*)"
        raise


def _pyproject_changed(directory: Path) -> object:
    """Says which pyproject.toml is the nearest, and when it was written; the same again while nothing has changed."""
    for folder in (directory, *directory.parents):
        with suppress(OSError):
            found = (folder / "pyproject.toml").stat()
            return folder, found.st_mtime_ns, found.st_size
    return ()
