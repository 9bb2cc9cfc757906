"""A dataset's folder: splits that leak nothing, the published columns, judgements with their truth, and the card."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet
import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.measurement import Comparison, Measurement, TimedBaseline
from kernel_lsp.core.profile import EagerKernel, ProfileReport, ToolRun
from kernel_lsp.core.verdict import CaseResult, Correct, Mismatch
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import Row, rows
from kernel_lsp.evolve.archive.dataset_folder import (
    SPLITS,
    JudgeName,
    judgement_rows,
    published_columns,
    split_rows,
    truth_of,
    write_folder,
)
from kernel_lsp.evolve.archive.dataset_profiles import profile_columns
from kernel_lsp.evolve.archive.model_records import ModelRecords
from kernel_lsp.evolve.propose.model_run import RELATED
from kernel_lsp.evolve.run.request import ModelChoices
from kernel_lsp.llm.request import ModelRequest
from tests.evolve.world import TASK, World, reply, verdict_of
from tests.scripted_model import ScriptedModel

PUBLISHED = (
    *("Op_Name", "Level_ID", "Task_ID", "Kernel_Name", "CUDA_Runtime", "PyTorch_Native_Runtime"),
    *("PyTorch_Compile_Runtime", "CUDA_Speedup_Native", "CUDA_Speedup_Compile", "CUDA_Code", "PyTorch_Code_Module"),
    *("PyTorch_Code_Functional", "Correct", "Max_Diff", "Error", "NCU_Profile", "Torch_Profile", "Clang_Tidy"),
)
"""Columns that the card of the AI CUDA Engineer's archive lists."""


async def archived(folder: Path) -> str:
    """Write an archive with a run of two proposals, and return the run's id."""

    def answer(request: ModelRequest) -> str:
        return reply(5) if request.sample else reply(6, "WRONG")

    world = World(folder, 1, 2, ModelChoices(early_stop="off", repair_rounds=0))
    await world.search(ScriptedModel(answer, name="m"))
    assert world.run_id is not None
    with Archive(folder) as archive:
        archive.save_task(world.run_id, TASK.model_dump_json())
    return world.run_id


async def test_the_folder_reads_back_and_its_card_names_each_file(tmp_path: Path) -> None:
    run_id, folder = await archived(tmp_path), tmp_path / "dataset"
    with Archive(tmp_path) as archive:
        written = write_folder(archive, [run_id], folder)
    (name,) = written.files
    found = pyarrow.parquet.read_table(folder / name).to_pylist()
    assert [row["CUDA_Code"] for row in found] == [row["kernel"] for row in found]
    assert {row["Correct"] for row in found} == {True, False}
    assert set(PUBLISHED) <= set(found[0])
    assert f"path: {name}" in (folder / "README.md").read_text()


async def test_a_split_that_has_become_empty_has_no_file_left(tmp_path: Path) -> None:
    run_id, folder = await archived(tmp_path), tmp_path / "dataset"
    (folder / "kernels").mkdir(parents=True)
    for split in SPLITS:
        (folder / "kernels" / f"{split}.parquet").write_text("an earlier export")
    with Archive(tmp_path) as archive:
        written = write_folder(archive, [run_id], folder)
    assert [f"kernels/{path.name}" for path in (folder / "kernels").iterdir()] == list(written.files)


async def test_a_run_is_in_the_split_of_the_families_whose_kernels_its_prompts_show(tmp_path: Path) -> None:
    """Twenty tasks, each of its own family, whose runs were shown the kernel of the task before or none."""
    ops = [f"aten.op_{n}.default" for n in range(20)]
    for is_shown in (False, True):
        workspace, run_ids = tmp_path / str(is_shown), list[str]()
        for number, op in enumerate(ops):
            run_ids.append(run_id := await archived(workspace))
            node = TASK.forward.nodes[0].model_copy(update={"op": op})
            forward = TASK.forward.model_copy(update={"nodes": (node,)})
            own = {"name": op, "forward": forward, "reference_source": f"# {op}"}
            with Archive(workspace) as archive:
                archive.save_task(run_id, TASK.model_copy(update=own).model_dump_json())
                with archive.writing() as db:  # each task has kernels of its own
                    db.execute("DELETE FROM candidates WHERE run_id = ?", (run_id,))
                    db.execute("UPDATE proposals SET record = replace(record, '_id\":\"', '_id\":\"' || ?)", (number,))
                archive.save_candidate(run_id, Candidate(text=f"// {number}", origin=Origin(proposer="user")))
                if is_shown and number:
                    shown = {"identity": "i", "task": "t", "operators": {}, "name": "n", "thought": "", "time": ""}
                    value = json.dumps([{**shown, "text": f"// {number - 1}"}])
                    ModelRecords(archive, run_id).save_value(RELATED, value)
        with Archive(workspace) as archive:
            n_splits = len(write_folder(archive, run_ids, tmp_path / "dataset").files)
        assert (n_splits == 1) == is_shown


async def test_the_folder_loads_with_datasets_and_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card's configuration is what `load_dataset` finds the files by; types of columns survive both loaders."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="pip install datasets pandas")
    pandas = pytest.importorskip("pandas", reason="pip install datasets pandas")
    run_id, folder = await archived(tmp_path), tmp_path / "dataset"
    with Archive(tmp_path) as archive:
        written = write_folder(archive, [run_id], folder)
    (name,) = written.files
    loaded = datasets.load_dataset(str(folder), "kernels", split=Path(name).stem, cache_dir=str(tmp_path / "cache"))
    frame = pandas.read_parquet(folder / name)
    expected = pyarrow.parquet.read_table(folder / name)
    assert loaded.column_names == list(frame.columns) == expected.column_names
    assert loaded["kernel"][:] == frame["kernel"].tolist() == expected["kernel"].to_pylist()
    assert [list(each) for each in frame["signatures"]] == loaded["signatures"][:] == expected["signatures"].to_pylist()
    assert sorted(frame["Correct"]) == sorted(loaded["Correct"]) == [False, True]
    assert frame["reward"].dtype == "int64"


async def test_the_module_and_level_are_those_of_the_tasks_file_unless_it_changed(tmp_path: Path) -> None:
    run_id, file = await archived(tmp_path), tmp_path / "level2" / "task.py"
    file.parent.mkdir()
    file.write_text("class Model: ...\n")
    with Archive(tmp_path) as archive:
        archive.save_task(run_id, TASK.model_copy(update={"source_file": str(file)}).model_dump_json())
        for mtime, expected in ((1.0, {"class Model: ...\n"}), (4e9, {None})):
            os.utime(file, (mtime, mtime))
            (name,) = write_folder(archive, [run_id], tmp_path / "dataset").files
            found = pyarrow.parquet.read_table(tmp_path / "dataset" / name).to_pylist()
            assert {row["Level_ID"] for row in found} == {2}
            assert {row["PyTorch_Code_Module"] for row in found} == expected
            card = (tmp_path / "dataset" / "README.md").read_text()
            assert ("PyTorch_Code_Module" in card.split("without a value in any row: ")[1].split(".")[0]) == (mtime > 1)


def test_profile_columns_are_null_where_a_tool_did_not_run() -> None:
    lint = Finding(code="bugprone-x", severity=Severity.INFORMATION, message="m", source="clang-tidy")
    ran = (ToolRun(tool="clang-tidy", status="ran"), ToolRun(tool="compute-sanitizer", status="absent"))
    counted = {"file": "k.cu", "device": "H200", "date": "", "shapes": {}, "time_us": 1.0, "floor_us": 1.0}
    report = ProfileReport(kind="executor", floor_basis="", kernels=(), findings=(lint,), tools=ran, **counted)
    found = profile_columns(report)
    assert json.loads(found.pop("Clang_Tidy") or "")[0]["code"] == "bugprone-x"
    assert set(found.values()) == {None}
    sanitized = ToolRun(tool="compute-sanitizer memcheck", status="ran")
    measured = report.model_copy(
        update={
            "kind": "measured",
            "tools": (*ran[:1], sanitized),
            "eager": (EagerKernel(name="e", n_calls=1, time_us=2.0),),
        }
    )
    on_gpu = profile_columns(measured)
    assert (on_gpu["Sanitizer"], on_gpu["NCU_Profile"]) == ("[]", "[]")
    assert json.loads(on_gpu["Torch_Profile"] or "")[0]["time_us"] == 2.0


async def test_a_judgement_has_its_reply_and_truth(tmp_path: Path) -> None:
    run_id = await archived(tmp_path)
    with Archive(tmp_path) as archive:
        wrong = next(row for row in rows(archive, run_id) if row.outcome == "mismatch")
        (found,) = judgement_rows(archive, judged(wrong))
    assert (found.reply, found.truth, found.is_correct) == (wrong.reply, False, False)
    assert json.loads(found.messages)[0]["role"] == "system"


def judged(row: Row) -> Row:
    """Return the row with a judgement that was asked with the row's own prompt."""
    said = {"said": 0.9, "probability": 0.8, "request_key": row.request_key, "prompt_hash": ""}
    return row.model_copy(update={"judgements": json.dumps([{"judge": "numerics", "model": "m", **said}])})


async def test_published_times_are_measured_ones_in_milliseconds(tmp_path: Path) -> None:
    run_id = await archived(tmp_path)
    with Archive(tmp_path) as archive:
        right = next(row for row in rows(archive, run_id) if row.outcome == "correct")
        verdict = next(each for each in archive.verdicts(run_id) if each.candidate_id == right.candidate_id)
    timed = verdict.model_copy(update={"times": {"op": comparison(2000.0, eager=4000.0, compile=3000.0)}})
    found = published_columns(right.model_copy(update={"verdict": timed.model_dump_json()}))
    assert (found["CUDA_Runtime"], found["CUDA_Speedup_Native"], found["CUDA_Speedup_Compile"]) == (2.0, 2.0, 1.5)


async def test_the_published_difference_is_that_of_ordinary_inputs(tmp_path: Path) -> None:
    run_id = await archived(tmp_path)
    with Archive(tmp_path) as archive:
        right = next(row for row in rows(archive, run_id) if row.outcome == "correct")
        verdict = next(each for each in archive.verdicts(run_id) if each.candidate_id == right.candidate_id)
    cases = [case_of(1e-6, "normal"), case_of(1e12, "large")]
    several = verdict.model_copy(update={"outcome": Correct(cases=tuple(cases))})
    found = published_columns(right.model_copy(update={"verdict": several.model_dump_json()}))
    assert found["Max_Diff"] == 1e-6


def case_of(error: float, family: str) -> CaseResult:
    outcome = verdict_of(Candidate(text="WRONG", origin=Origin(proposer="user"))).outcome
    assert isinstance(outcome, Mismatch)
    case = outcome.failed
    errors = tuple(each.model_copy(update={"max_error": error}) for each in case.errors)
    return case.model_copy(update={"family": family, "errors": errors})


def comparison(ours: float, **baselines: float) -> Comparison:
    timed = tuple(TimedBaseline(name=name, measurement=measured(time)) for name, time in baselines.items())
    return Comparison(baseline_name="eager", baseline=measured(1.0), ours=measured(ours), baselines=timed)


def measured(time_us: float) -> Measurement:
    about = {"gpu": "H200", "driver": "580", "torch_version": "2.13", "cache": "cold", "date": "2026-11-23"}
    times = {"time_us": time_us, "low_us": time_us, "high_us": time_us, "n_samples": 1}
    return Measurement.model_validate({**times, **about, "shapes": {}, "dtypes": {}})


def test_rows_that_share_a_key_through_others_are_in_one_split() -> None:
    chains = [[f"task {n}", f"kernel {n}"] for n in range(200)]
    linked = [[f"task {n}", f"task {n + 1}"] for n in range(199)]
    assert len(set(split_rows(chains))) == 3
    assert len(set(split_rows([*chains, *linked]))) == 1


def test_a_split_does_not_depend_on_the_order_or_on_other_groups() -> None:
    keys = [[f"task {n}"] for n in range(50)]
    assert split_rows(keys) == split_rows(keys[::-1])[::-1] == split_rows([*keys, ["task x"]])[:-1]


@pytest.mark.parametrize(
    ("judge", "outcome", "truth"),
    [
        ("numerics", "correct", True),
        ("numerics", "mismatch", False),
        ("memory", "mismatch", True),
        ("numerics", "crashed", None),
        ("compilation", "build_failed", False),
        ("memory", "build_failed", None),
        ("memory", "timed_out", None),
    ],
)
def test_the_truth_is_of_the_judges_kind_of_fault(judge: JudgeName, outcome: str, truth: bool | None) -> None:
    assert truth_of(judge, outcome) is truth


def test_runs_that_asked_no_model_have_a_card_and_no_rows(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        assert write_folder(archive, [], tmp_path / "dataset").n_rows == 0
    assert (tmp_path / "dataset" / "README.md").is_file()
