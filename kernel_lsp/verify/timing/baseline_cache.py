"""Cache small results, such as the baselines' times, on disk under a key of everything that they depend on."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.measurement import BaselineResult
from kernel_lsp.core.model import Noun
from kernel_lsp.process.atomic_files import write_atomically

FOLDER = "baselines"
FORMAT = 1
"""File format; files of other formats are ignored."""

_logger = logging.getLogger(__name__)
Value = TypeVar("Value")


class BaselineKey(Noun):
    """The factors of a baseline's time. `task_hash` is of the reference's text, `configuration` of the shapes, dtypes
    and direction, `name` is the mode."""

    task_hash: str
    configuration: str
    name: str
    gpu_uuid: str
    driver: str
    torch_version: str


class KeyedCache(Generic[Value]):
    """A best-effort cache of one folder: unreadable entries count as missing, unwritable ones are dropped."""

    def __init__(self, directory: Path, adapter: TypeAdapter[Value]) -> None:
        self._directory, self._adapter = directory, adapter

    def find(self, key: Noun) -> Value | None:
        """Return the value of this key; None where there is none, or no readable one."""
        path = self._path(key)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            if entry["format"] != FORMAT or entry["key"] != key.model_dump(mode="json"):
                return None
            return self._adapter.validate_python(entry["result"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            _logger.warning("the cache entry %s is not readable and is made again: %s", path, error)
            return None

    def keep(self, key: Noun, value: Value) -> None:
        """Keep a value, replacing an earlier one."""
        entry = {
            "format": FORMAT,
            "key": key.model_dump(mode="json"),
            "result": self._adapter.dump_python(value, mode="json"),
        }
        try:
            write_atomically(self._path(key), json.dumps(entry, indent=1))
        except OSError as error:
            _logger.warning("a cache entry is not kept: %s", error)

    def _path(self, key: Noun) -> Path:
        return self._directory / f"{sha256_of(key.model_dump_json())}.json"


class BaselineCache(KeyedCache[BaselineResult]):
    """The baselines' times."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / FOLDER, TypeAdapter(BaselineResult))

    def keep(self, key: Noun, value: BaselineResult) -> None:
        """Keep a final result, without its ratio, which belongs to one candidate."""
        super().keep(key, value.model_copy(update={"ratio": None}) if value.kind == "timed" else value)
