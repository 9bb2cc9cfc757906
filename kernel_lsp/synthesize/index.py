"""Keep a synthesis: every finished attempt in a journal, and the accepted tasks in an index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from kernel_lsp import __version__
from kernel_lsp.core.digest import sha256_of
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.dataset import parquet_module
from kernel_lsp.synthesize.attempt import Attempt
from kernel_lsp.synthesize.request import SynthesisFolder, SynthesisRequest

INDEX_VERSION = 1
MAX_NAME = 60


def task_name(attempt: Attempt) -> str:
    """Return the file's name: the index, and the operators."""
    words = "_".join(operator.rpartition(".")[2].lower() for operator in attempt.operators)
    return f"{attempt.index:06d}_{re.sub(r'[^a-z0-9_]', '', words)[:MAX_NAME].strip('_')}.py"


def write_task(folder: SynthesisFolder, attempt: Attempt) -> None:
    (folder.tasks / task_name(attempt)).write_text(attempt.text, encoding="utf-8")


def write_index(folder: SynthesisFolder, request: SynthesisRequest, accepted: Sequence[Attempt]) -> None:
    """Write one row for each accepted task."""
    pyarrow = parquet_module()
    rows = [index_row(request, attempt) for attempt in accepted]
    table = pyarrow.Table.from_pylist(rows) if rows else pyarrow.table({"index_version": pyarrow.array([], "int64")})
    if rows:  # a column without a value has no type of its own, and indices are read together
        types = {"opinion": pyarrow.float64(), "n_flops": pyarrow.int64(), "judges": pyarrow.list_(pyarrow.string())}
        fields = [pyarrow.field(each.name, types.get(each.name, each.type)) for each in table.schema]
        table = table.cast(pyarrow.schema(fields))
    metadata = {b"kernel_lsp": request.model_dump_json().encode(), **(table.schema.metadata or {})}
    temporary = folder.index.with_suffix(".tmp")
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), temporary)
    temporary.replace(folder.index)


def index_row(request: SynthesisRequest, attempt: Attempt) -> Mapping[str, Any]:
    """Return a task's row: file, composition, measurements and provenance."""
    assert attempt.trace is not None
    return {
        "index_version": INDEX_VERSION,
        "file": f"tasks/{task_name(attempt)}",
        "sha256": sha256_of(attempt.text),
        "text": attempt.text,
        "proposer": attempt.proposer,
        "request_key": attempt.request_key,
        "seed": request.seed,
        "index": attempt.index,
        "structure": attempt.structure,
        "n_operators": len(attempt.operators),
        "operators": list(attempt.operators),
        "aten_operators": list(attempt.trace.ops),
        "shapes": json.dumps(attempt.shapes),
        "n_flops": attempt.n_flops,
        "graph_hash": attempt.trace.graph_hash,
        "nearest_held_out": attempt.nearest,
        "similarity": attempt.similarity,
        "eager_ms": attempt.eager_ms,
        "device": attempt.device,
        "compiler": attempt.compiler,
        "is_captured": attempt.is_captured,
        "opinion": attempt.opinion,
        "judges": list(attempt.judges),
        "torch_version": request.torch_version,
        "kernel_lsp_version": __version__,
    }


class Journal:
    """The attempts of one synthesis. The first line is its request."""

    def __init__(self, file: IO[str], attempts: dict[int, Attempt]) -> None:
        self._file, self.attempts = file, attempts

    def add(self, attempt: Attempt) -> None:
        """Store an attempt: a killed process loses at most the line that it was writing."""
        self.attempts[attempt.index] = attempt
        self._file.write(attempt.model_dump_json() + "\n")
        self._file.flush()


@contextmanager
def open_journal(path: Path, request: SynthesisRequest) -> Iterator[Journal]:
    """Open or create the journal. Raises UserError where it is of another synthesis."""
    attempts = _read(path, request) if path.exists() else {}
    with path.open("a", encoding="utf-8") as file:
        if not path.stat().st_size:
            file.write(request.model_dump_json() + "\n")
        yield Journal(file, attempts)


def _read(path: Path, request: SynthesisRequest) -> dict[int, Attempt]:
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # the line at which the process was killed
        path.write_text(whole, encoding="utf-8")
    lines = whole.splitlines()
    try:
        before = SynthesisRequest.model_validate_json(lines[0]) if lines else request
        attempts = [Attempt.model_validate_json(line) for line in lines[1:]]
    except ValidationError:
        raise UserError("the journal cannot be read", file=str(path), next_step="use another folder") from None
    differing = [name for name in type(request).model_fields if getattr(before, name) != getattr(request, name)]
    if differing:
        raise UserError(
            f"the folder holds a synthesis with another {', '.join(differing).replace('_', ' ')}",
            file=str(path),
            next_step="give the same options to resume it, or name another folder",
        )
    return {attempt.index: attempt for attempt in attempts}
