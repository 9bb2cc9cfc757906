"""Cache baseline measurements on disk: one small JSON file each, keyed by everything that a time depends on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kernel_lsp.core.measurement import BaselineResult
from kernel_lsp.core.model import Noun

FOLDER = "baselines"
FORMAT = 1
"""File format; files of other formats are ignored."""

_logger = logging.getLogger(__name__)
_RESULT: TypeAdapter[BaselineResult] = TypeAdapter(BaselineResult)


class BaselineKey(Noun):
    """The factors of a baseline's time. `task_hash` is of the reference's text, `configuration` of the shapes, dtypes
    and direction, `name` is the mode."""

    task_hash: str
    configuration: str
    name: str
    gpu_uuid: str
    driver: str
    torch_version: str


class BaselineCache:
    """A best-effort cache: unreadable entries are measured again, unwritable ones are dropped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / FOLDER

    def find(self, key: BaselineKey) -> BaselineResult | None:
        """Return the result of this key; None where there is none, or no readable one."""
        path = self._path(key)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            if entry["format"] != FORMAT or BaselineKey.model_validate(entry["key"]) != key:
                return None
            return _RESULT.validate_python(entry["result"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            _logger.warning("the kept baseline %s is not readable and is measured again: %s", path, error)
            return None

    def keep(self, key: BaselineKey, result: BaselineResult) -> None:
        """Keep a final result, without its ratio, which belongs to one candidate."""
        kept = result.model_copy(update={"ratio": None}) if result.kind == "timed" else result
        entry = {
            "format": FORMAT,
            "key": key.model_dump(mode="json"),
            "result": _RESULT.dump_python(kept, mode="json"),
        }
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(entry, indent=1), encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            _logger.warning("a baseline is not kept: %s", error)
            with suppress(OSError):
                temporary.unlink()

    def _path(self, key: BaselineKey) -> Path:
        return self._directory / f"{hashlib.sha256(key.model_dump_json().encode()).hexdigest()}.json"
