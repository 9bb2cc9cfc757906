"""Write a dataset as a folder: Parquet files by split, and a card that loaders and people read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from kernel_lsp import __version__
from kernel_lsp.core.candidate import candidate_id_of
from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.core.measurement import Measurement
from kernel_lsp.core.model import Noun
from kernel_lsp.core.operators import base_op
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Correct, Mismatch, Verdict
from kernel_lsp.core.words import counted
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import Row, parquet_module, rows
from kernel_lsp.evolve.archive.dataset_profiles import PROFILE_COLUMNS, Profiles, profile_columns
from kernel_lsp.evolve.archive.model_records import ModelRecords
from kernel_lsp.evolve.propose.model_run import RELATED
from kernel_lsp.evolve.propose.population import INNOVATIONS
from kernel_lsp.llm.judges.calibration import Judgement, JudgeName
from kernel_lsp.llm.request import Replied
from kernel_lsp.verify.model.cases import SCREEN_FAMILIES

CARD = "README.md"
KERNELS, JUDGEMENTS = "kernels", "judgements"
FAULTS: dict[JudgeName, frozenset[str]] = {
    "compilation": frozenset(("build_failed",)),
    "memory": frozenset(("crashed",)),
    "numerics": frozenset(("mismatch",)),
}
"""Judge -> outcomes that are its kind of fault."""
ORDER: tuple[JudgeName, ...] = ("compilation", "memory", "numerics")
"""Order in which kinds of fault are found: a kernel that does not compile has no numerical result."""
EAGER, COMPILED = "eager", "compile"
US_PER_MS = 1000.0
LEVEL = re.compile(r"level[ _-]?(\d)(?!\d)", re.IGNORECASE)
"""A folder's or file's name that tells the level of a KernelBench task."""
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SHARES = {"train": 80, "validation": 10, "test": 10}
"""Shares in percent of the groups; those of rows differ, as groups have different sizes."""


class FolderWritten(Noun):
    """Rows by file, below the folder."""

    files: dict[str, int]

    @property
    def n_rows(self) -> int:
        return sum(n for name, n in self.files.items() if name.startswith(KERNELS))


def write_folder(
    archive: Archive, run_ids: Sequence[str], folder: Path, profiles: Profiles | None = None
) -> FolderWritten:
    """Write both tables of these runs, each split a file, and the card. An empty split has no file: one of an earlier
    export goes, as its rows may be in another split now. Raises OSError; EnvironmentProblem without pyarrow."""
    parquet_module()
    found = [row for run_id in run_ids for row in rows(archive, run_id)]
    families = {run_id: _family(archive, run_id) for run_id in run_ids}
    modules = {run_id: _module(archive, run_id) for run_id in run_ids}
    shown = {run_id: _shown_keys(archive, run_id) for run_id in run_ids}
    splits = split_rows([[*_keys(row, families[row.run_id]), *shown[row.run_id]] for row in found])
    tables: dict[str, list[dict[str, Any]]] = {}
    judged: dict[str, list[dict[str, Any]]] = {}
    for row, split in zip(found, splits, strict=True):
        origin = {"family": families[row.run_id], "split": split, "sources": _sources(archive, row.run_id)}
        profiled = profile_columns((profiles or {}).get((row.run_id, row.candidate_id)))
        published = {**published_columns(row), **modules[row.run_id], **profiled}
        tables.setdefault(split, []).append({**row.model_dump(mode="json"), **published, **origin})
        judged.setdefault(split, []).extend(
            {**each.model_dump(mode="json"), "family": origin["family"], "split": split}
            for each in judgement_rows(archive, row)
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = _write(KERNELS, tables, folder) | _write(JUDGEMENTS, judged, folder)
    empty = _empty_columns([row for found in tables.values() for row in found])
    (folder / CARD).write_text(card_text(files, len(run_ids), empty), encoding="utf-8")
    return FolderWritten(files=files)


def card_text(files: Mapping[str, int], n_runs: int, empty: Sequence[str]) -> str:
    """Return the dataset card: the loaders' configuration, what is in it and what not, and how it was split."""
    lines = ["---", "pretty_name: CUDA kernels judged by kernel_lsp", "tags:", "- code", "- cuda"]
    lines += ["configs:"] if files else []
    for table in (KERNELS, JUDGEMENTS):
        own = [name for name in files if name.startswith(f"{table}/")]
        if own:
            lines += [f"- config_name: {table}", *(["  default: true"] if table == KERNELS else []), "  data_files:"]
            lines += [line for name in own for line in (f"  - split: {Path(name).stem}", f"    path: {name}")]
    lines += ["---", "", "# CUDA kernels judged by kernel_lsp", ""]
    lines += [f"Written by kernel_lsp {__version__} from {counted(n_runs, 'run')}.", "", "| file | rows |", "|---|---|"]
    lines += [f"| {name} | {n} |" for name, n in files.items()]
    kernel_columns = sorted({*Row.model_fields, "family", "split", "sources"})
    lines += [
        *("", "## Tables", ""),
        f"`{KERNELS}`: one row for each version of a proposal. Columns of kernel_lsp: {', '.join(kernel_columns)}.",
        "Columns named as in the AI CUDA Engineer's archive begin with a capital; times there are in milliseconds.",
        "",
        f"Columns without a value in any row: {', '.join(empty) or 'none'}. Times are of runs on a GPU. "
        f"{', '.join(PROFILE_COLUMNS)} are of `kernel-lsp export all --format parquet --out DIR --profile`: the first, "
        "second and last need a GPU and its tools, the third clang-tidy. PyTorch_Code_Module is null where the task's "
        "file is gone or was changed after its run, Level_ID where no folder names a level.",
        "",
        f"`{JUDGEMENTS}`: one row for each judgement of a model, with its prompt, reply and truth. "
        f"Columns: {', '.join(JudgementRow.model_fields)}, family, split. "
        "`truth` is null where the outcome does not tell.",
        *("", "## Splits", ""),
        "Rows of one task, of tasks with the same set of operators (`family`), of one run, or of kernels with a common "
        "ancestor are in one split, and so are a run and the families whose kernels its prompts show. A group's split "
        "is a hash of its least key.",
        *("", "## Limits", ""),
        "Verdicts hold for the device that the column `device` names. Prompts and replies are as sent and received, "
        "and may hold the user's own code. `time_kind` tells measured times from estimates.",
    ]
    return "\n".join(lines) + "\n"


def _empty_columns(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in (found[0] if found else ()) if all(row[name] is None for row in found)]


def _module(archive: Archive, run_id: str) -> dict[str, Any]:
    """Return the text of the task's file, unless it is gone or was changed after the run began, and its level."""
    run = archive.run(run_id)
    file = Path(Task.model_validate_json(run.task_json).source_file) if run.task_json is not None else Path()
    level = LEVEL.search(str(file))
    try:
        is_same = file.stat().st_mtime <= datetime.fromisoformat(run.started).timestamp()
        text = file.read_text(encoding="utf-8") if is_same else None
    except (OSError, UnicodeDecodeError):
        text = None
    return {"Level_ID": int(level[1]) if level else None, "PyTorch_Code_Module": text}


def _family(archive: Archive, run_id: str) -> str:
    """Return the set of operators of the run's task."""
    task_json = archive.run(run_id).task_json
    if task_json is None:
        return ""
    return " ".join(sorted({base_op(node.op) for node in Task.model_validate_json(task_json).forward.nodes}))


def _keys(row: Row, family: str) -> list[str]:
    lineage = [f"kernel {each}" for each in (row.candidate_id, *row.parents) if each]
    return [f"run {row.run_id}", f"task {row.reference}", f"family {family}", *lineage]


def _shown_keys(archive: Archive, run_id: str) -> list[str]:
    """Return the keys of other tasks' kernels that the run's prompts show, and of those tasks' families."""
    value = ModelRecords(archive, run_id).value(RELATED)
    ids = [candidate_id_of(each.text) for each in INNOVATIONS.validate_json(value or "[]")]
    query = "SELECT run_id FROM candidates WHERE candidate_id = ?"
    runs = dict.fromkeys(other for id_ in ids for (other,) in archive.rows(query, (id_,)))
    return [f"kernel {id_}" for id_ in ids] + [f"family {_family(archive, other)}" for other in runs]


def _sources(archive: Archive, run_id: str) -> str:
    """Return where a merged archive has the run from, as JSON."""
    return json.dumps([row[0] for row in archive.rows("SELECT source FROM origins WHERE run_id = ?", (run_id,))])


def _write(table: str, by_split: Mapping[str, list[dict[str, Any]]], folder: Path) -> dict[str, int]:
    pyarrow = parquet_module()
    for split in SPLITS:
        (folder / table / f"{split}.parquet").unlink(missing_ok=True)
    written, everything = {}, [row for split in SPLITS for row in by_split.get(split, [])]
    if not everything:
        return {}
    schema = pyarrow.Table.from_pylist(everything).schema  # one for all splits: a null column has no type of its own
    for split in filter(by_split.get, SPLITS):
        path = folder / table / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(by_split[split], schema=schema), path)
        written[f"{table}/{split}.parquet"] = len(by_split[split])
    return written


class JudgementRow(Noun):
    """One judgement. `truth` is true without a fault of the judge's kind, and null where the outcome does not tell."""

    run_id: str
    slot: int
    round: int
    candidate_id: str
    task: str
    reference: str
    kernel: str
    judge: str
    model: str
    messages: str
    reply: str
    said: float
    probability: float
    truth: bool | None
    is_correct: bool
    outcome: str
    device: str


def judgement_rows(archive: Archive, row: Row) -> Iterator[JudgementRow]:
    """Yield the judgements of one version of a proposal, as its row has them."""
    judgements = [Judgement.model_validate(each) for each in json.loads(row.judgements)]
    if not judgements:
        return
    replies = {recorded.key: recorded for recorded in ModelRecords(archive, row.run_id).replies()}
    for judgement in judgements:
        recorded = replies.get(judgement.request_key)
        outcome = recorded.outcome if recorded is not None else None
        messages = recorded.request.messages if recorded is not None else ()
        yield JudgementRow(
            **row.model_dump(include={"run_id", "slot", "round", "candidate_id", "task", "reference", "kernel"}),
            judge=judgement.judge,
            model=judgement.model,
            messages=json.dumps([message.model_dump() for message in messages]),
            reply=outcome.text if isinstance(outcome, Replied) else "",
            said=judgement.said,
            probability=judgement.probability,
            truth=truth_of(judgement.judge, row.outcome),
            is_correct=row.outcome == "correct",
            outcome=row.outcome,
            device=row.device,
        )


def truth_of(judge: JudgeName, outcome: str) -> bool | None:
    """Return whether the kernel has no fault of the judge's kind; None where an earlier fault hides it."""
    if outcome == "correct":
        return True
    shown = next((name for name in ORDER if outcome in FAULTS[name]), None)
    if shown is None:
        return None
    if shown == judge:
        return False
    return True if ORDER.index(judge) < ORDER.index(shown) else None


def published_columns(row: Row) -> dict[str, Any]:
    """Return the columns of one row."""
    verdict = Verdict.model_validate_json(row.verdict) if row.verdict else None
    ours = _time_ms(verdict, "")
    native, compiled = _time_ms(verdict, EAGER), _time_ms(verdict, COMPILED)
    return {
        "Op_Name": row.task,
        "Task_ID": sha256_of(row.reference, SHORT_DIGITS),
        "Kernel_Name": row.name,
        "CUDA_Runtime": ours,
        "PyTorch_Native_Runtime": native,
        "PyTorch_Compile_Runtime": compiled,
        "CUDA_Speedup_Native": native / ours if native and ours else None,
        "CUDA_Speedup_Compile": compiled / ours if compiled and ours else None,
        "CUDA_Code": row.kernel,
        "PyTorch_Code_Functional": row.reference,
        "Correct": row.outcome == "correct",
        "Max_Diff": _max_diff(verdict),
        "Error": "" if row.outcome == "correct" else row.feedback,
    }


def _time_ms(verdict: Verdict | None, baseline: str) -> float | None:
    """Return the time over all operations: ours, eager's, or that of the fastest mode of torch.compile. Estimates are
    no times here."""
    if verdict is None or not verdict.times:
        return None
    times = []
    for comparison in verdict.times.values():
        named = [time_us for name, time_us in comparison.baselines_us.items() if name.startswith(baseline)]
        found = [comparison.ours.time_us] if not baseline else named
        if not found or not isinstance(comparison.ours, Measurement):
            return None
        times.append(min(found))
    return sum(times) / US_PER_MS


def _max_diff(verdict: Verdict | None) -> float | None:
    """Return the largest absolute error on ordinary inputs: those of 1e19 have a rounding error of 1e12."""
    if verdict is None or not isinstance(verdict.outcome, Correct | Mismatch):
        return None
    cases = [case for case in verdict.outcome.cases if case.family in SCREEN_FAMILIES]
    if isinstance(verdict.outcome, Mismatch):
        cases.append(verdict.outcome.failed)
    return max((error.max_error for case in cases for error in case.errors), default=None)


def split_rows(keys: Sequence[Iterable[str]]) -> list[Split]:
    """Return the split of each row. Rows that share a key, also through other rows, are in one split; which one depends
    on the least key of their group alone."""
    parents: dict[str, str] = {}
    rows = [list(dict.fromkeys(each)) for each in keys]
    for row in rows:
        for key in row:
            _join(parents, row[0], key)
    return [_split_of(_root(parents, row[0])) for row in rows]


def _root(parents: dict[str, str], key: str) -> str:
    parents.setdefault(key, key)
    while parents[key] != key:
        parents[key] = parents[parents[key]]
        key = parents[key]
    return key


def _join(parents: dict[str, str], one: str, other: str) -> None:
    first, second = sorted((_root(parents, one), _root(parents, other)))
    parents[second] = first  # so a group's root is its least key


def _split_of(key: str) -> Split:
    number = int(sha256_of(key), 16) % 100
    for split in SPLITS[:-1]:
        if number < SHARES[split]:
            return split
        number -= SHARES[split]
    return SPLITS[-1]
