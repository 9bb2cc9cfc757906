"""Write the accepted tasks: a KernelBench file each, and a Parquet index with where each comes from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp import __version__
from kernel_lsp.evolve.archive.parquet import parquet_module
from kernel_lsp.synthesize.attempt import Attempt
from kernel_lsp.synthesize.request import SynthesisFolder, SynthesisRequest

INDEX_VERSION = 1
MAX_NAME = 60


def task_name(attempt: Attempt) -> str:
    """Return the file's name: the index, and the operators."""
    words = "_".join(operator.rpartition(".")[2].lower() for operator in attempt.operators)
    return f"{attempt.index:06d}_{re.sub(r'[^a-z0-9_]', '', words)[:MAX_NAME].strip('_')}.py"


def write_task(folder: SynthesisFolder, attempt: Attempt) -> Path:
    path = folder.tasks / task_name(attempt)
    if not path.exists() or path.read_text(encoding="utf-8") != attempt.text:
        path.write_text(attempt.text, encoding="utf-8")
    return path


def write_index(folder: SynthesisFolder, request: SynthesisRequest, accepted: Sequence[Attempt]) -> None:
    """Write one row for each accepted task."""
    pyarrow = parquet_module()
    rows = [index_row(request, attempt) for attempt in accepted]
    table = pyarrow.Table.from_pylist(rows) if rows else pyarrow.table({"index_version": pyarrow.array([], "int64")})
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
        "sha256": hashlib.sha256(attempt.text.encode()).hexdigest(),
        "text": attempt.text,
        "proposer": attempt.proposer,
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
        "torch_version": request.torch_version,
        "kernel_lsp_version": __version__,
    }
