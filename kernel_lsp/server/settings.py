"""Settings in an editor: what `kernel_lsp.config` reads, with the client's own values on top, per folder and live."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.config import Settings, load_settings
from kernel_lsp.errors import SettingError

SECTION = "kernelLsp"
"""Of the client's configuration; names in it are camelCase."""
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_OVERRIDE_ORIGIN = "the command line"


class EditorSettings:
    """The client's values, and the settings of any folder with them. `pyproject_changed` is called when a file that was
    read before says something else by now, which is found out when settings are asked for."""

    def __init__(self, initial: Mapping[str, Any], pyproject_changed: Callable[[], None] = lambda: None) -> None:
        self._pyproject_changed = pyproject_changed
        self._everywhere = overrides_of(initial)
        self._of_folder: dict[Path, dict[str, Any]] = {}
        self._known: dict[Path, tuple[float, Settings]] = {}

    def set_everywhere(self, values: Mapping[str, Any]) -> None:
        """The client's values for all folders that have none of their own."""
        self._everywhere = overrides_of(values)
        self._known.clear()

    def set_for(self, folder: Path, values: Mapping[str, Any]) -> None:
        """The client's values for a workspace folder."""
        self._of_folder[folder] = overrides_of(values)
        self._known.clear()

    def forget(self, folder: Path) -> None:
        """The folder has left the workspace."""
        self._of_folder.pop(folder, None)
        self._known.clear()

    def overrides(self, directory: Path) -> dict[str, Any]:
        """What the client says for files in `directory`: the innermost workspace folder with values counts."""
        folders = [folder for folder in self._of_folder if directory.is_relative_to(folder)]
        return self._of_folder[max(folders, key=lambda folder: len(folder.parts))] if folders else self._everywhere

    def of(self, directory: Path) -> Settings:
        """The settings for files in `directory`. Raises SettingError. A changed pyproject.toml counts at once."""
        changed = _pyproject_changed(directory)
        known = self._known.get(directory)
        if known is not None and known[0] == changed:
            return known[1]
        settings = _load(directory, self.overrides(directory))
        self._known[directory] = (changed, settings)
        if known is not None and known[1] != settings:
            self._pyproject_changed()
        return settings


def overrides_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are settings, by our names. An editor has others beside them."""
    named = {_CAPITAL.sub("_", name).lower(): value for name, value in values.items() if isinstance(name, str)}
    return {name: value for name, value in named.items() if name in Settings.model_fields and value is not None}


# --- below


def _load(directory: Path, overrides: Mapping[str, Any]) -> Settings:
    try:
        return load_settings(directory, overrides)
    except SettingError as error:
        if error.file == _OVERRIDE_ORIGIN:
            error.file = f"the editor's settings ({SECTION}.*)"
        raise


def _pyproject_changed(directory: Path) -> float:
    """When the nearest pyproject.toml was written; 0 without one."""
    for folder in (directory, *directory.parents):
        try:
            return (folder / "pyproject.toml").stat().st_mtime
        except OSError:
            continue
    return 0.0
