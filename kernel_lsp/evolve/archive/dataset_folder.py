"""Write a dataset as a folder: Parquet files by split, and a card that loaders and people read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp import __version__
from kernel_lsp.core.model import Noun
from kernel_lsp.core.operators import base_op
from kernel_lsp.core.task import Task
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import Row, rows
from kernel_lsp.evolve.archive.judgement_rows import JudgementRow, judgement_rows
from kernel_lsp.evolve.archive.parquet import parquet_module
from kernel_lsp.evolve.archive.published import ABSENT, published_columns
from kernel_lsp.evolve.archive.splits import SPLITS, Split, split_rows

CARD = "README.md"
KERNELS, JUDGEMENTS = "kernels", "judgements"


class FolderWritten(Noun):
    """Rows by file, below the folder."""

    files: dict[str, int]

    @property
    def n_rows(self) -> int:
        return sum(n for name, n in self.files.items() if name.startswith(KERNELS))


def write_folder(archive: Archive, run_ids: Sequence[str], folder: Path) -> FolderWritten:
    """Write both tables of these runs, each split a file, and the card. Empty splits get no file. Raises OSError;
    EnvironmentProblem without pyarrow."""
    parquet_module()
    found = [row for run_id in run_ids for row in rows(archive, run_id)]
    families = {run_id: _family(archive, run_id) for run_id in run_ids}
    splits = split_rows([_keys(row, families[row.run_id]) for row in found])
    tables: dict[str, list[dict[str, Any]]] = {}
    judged: dict[str, list[dict[str, Any]]] = {}
    for row, split in zip(found, splits, strict=True):
        origin = {"family": families[row.run_id], "split": split, "sources": _sources(archive, row.run_id)}
        tables.setdefault(split, []).append({**row.model_dump(mode="json"), **published_columns(row), **origin})
        judged.setdefault(split, []).extend(
            {**each.model_dump(mode="json"), "family": origin["family"], "split": split}
            for each in judgement_rows(archive, row)
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = _write(KERNELS, tables, folder) | _write(JUDGEMENTS, judged, folder)
    (folder / CARD).write_text(card_text(files, len(run_ids)), encoding="utf-8")
    return FolderWritten(files=files)


def card_text(files: Mapping[str, int], n_runs: int) -> str:
    """Return the dataset card: the loaders' configuration, what is in it, and how it was split."""
    lines = ["---", "pretty_name: CUDA kernels judged by kernel_lsp", "tags:", "- code", "- cuda", "configs:"]
    for table in (KERNELS, JUDGEMENTS):
        own = [name for name in files if name.startswith(f"{table}/")]
        if own:
            lines += [f"- config_name: {table}", *(["  default: true"] if table == KERNELS else []), "  data_files:"]
            lines += [line for name in own for line in (f"  - split: {Path(name).stem}", f"    path: {name}")]
    lines += ["---", "", "# CUDA kernels judged by kernel_lsp", ""]
    lines += [f"Written by kernel_lsp {__version__} from {n_runs} runs.", "", "| file | rows |", "|---|---|"]
    lines += [f"| {name} | {n} |" for name, n in files.items()]
    kernel_columns = sorted({*Row.model_fields, "family", "split", "sources"})
    lines += [
        *("", "## Tables", ""),
        f"`{KERNELS}`: one row for each version of a proposal. Columns of kernel_lsp: {', '.join(kernel_columns)}.",
        "Columns named as in the AI CUDA Engineer's archive begin with a capital; times there are in milliseconds. "
        f"Without values: {', '.join(ABSENT)}.",
        "",
        f"`{JUDGEMENTS}`: one row for each judgement of a model, with its prompt, reply and truth. "
        f"Columns: {', '.join(JudgementRow.model_fields)}, family, split. "
        "`truth` is null where the outcome does not tell.",
        *("", "## Splits", ""),
        "Rows of one task, of tasks with the same set of operators (`family`), of one run, or of kernels with a common "
        "ancestor are in one split. A group's split is a hash of its least key.",
        *("", "## Limits", ""),
        "Verdicts hold for the device that the column `device` names. Prompts and replies are as sent and received, "
        "and may hold the user's own code. `time_kind` tells measured times from estimates.",
    ]
    return "\n".join(lines) + "\n"


# --- below: rows


def _family(archive: Archive, run_id: str) -> str:
    """Return the set of operators of the run's task."""
    task_json = archive.run(run_id).task_json
    if task_json is None:
        return ""
    return " ".join(sorted({base_op(node.op) for node in Task.model_validate_json(task_json).forward.nodes}))


def _keys(row: Row, family: str) -> list[str]:
    lineage = [f"kernel {each}" for each in (row.candidate_id, *row.parents) if each]
    return [f"run {row.run_id}", f"task {row.reference}", f"family {family}", *lineage]


def _sources(archive: Archive, run_id: str) -> str:
    """Return where a merged archive has the run from, as JSON."""
    return json.dumps([row[0] for row in archive.rows("SELECT source FROM origins WHERE run_id = ?", (run_id,))])


def _write(table: str, by_split: Mapping[str, list[dict[str, Any]]], folder: Path) -> dict[str, int]:
    pyarrow = parquet_module()
    written, everything = {}, [row for split in SPLITS for row in by_split.get(split, [])]
    if not everything:
        return {}
    schema = pyarrow.Table.from_pylist(everything).schema  # one for all splits: a null column has no type of its own
    for split in _filled(by_split):
        path = folder / table / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(by_split[split], schema=schema), path)
        written[f"{table}/{split}.parquet"] = len(by_split[split])
    return written


def _filled(by_split: Mapping[str, list[dict[str, Any]]]) -> list[Split]:
    return [split for split in SPLITS if by_split.get(split)]
