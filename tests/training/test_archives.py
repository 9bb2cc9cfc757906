"""Tables from archives: measurements only, of texts that the generator still prints."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import CandidateProposed
from kernel_lsp.core.measurement import Measurement
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.schedule_times import schedule_tables
from kernel_lsp.generate.program import plan_program
from kernel_lsp.training.features import draw_schedules
from tests.evolve.world import TASK, verdict_of

GPU = "NVIDIA H200"


def _measurement(time_us: float) -> Measurement:
    return Measurement(
        time_us=time_us,
        low_us=time_us,
        high_us=time_us,
        n_samples=10,
        gpu=GPU,
        driver="",
        torch_version="",
        cache="cold",
        shapes={},
        dtypes={},
        date="2026-11-28",
    )


def _save(archive: Archive, run_id: str, text: str, schedule: dict[str, int | str], time_us: float | None) -> None:
    candidate = Candidate(text=text, origin=Origin(proposer="generator", schedule=schedule))
    archive.save_candidate(run_id, candidate)
    verdict = verdict_of(candidate)
    if time_us is not None:
        verdict = verdict.model_copy(update={"measurement": _measurement(time_us)})
    event = CandidateProposed(candidate_id=candidate.id, generation=0, description="")
    archive.save_verdict(run_id, verdict, event)


def test_measured_schedules_of_an_archive_become_a_table(tmp_path: Path) -> None:
    schedules = draw_schedules(plan_program(TASK), 5, 0)
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("model.py::scale", {})
        archive.save_task(run_id, TASK.model_dump_json())
        for place, each in enumerate(schedules[:3]):
            _save(archive, run_id, each.text, dict(each.schedule), 10.0 + place)
        _save(archive, run_id, schedules[3].text, dict(schedules[3].schedule), None)
        _save(archive, run_id, schedules[4].text + "\n// another generator", dict(schedules[4].schedule), 1.0)
    tables = schedule_tables([tmp_path])
    assert [table.gpu for table in tables] == [GPU]
    (task,) = tables[0].tasks
    assert task.family == "pointwise"
    assert [each.time_us for each in task.schedules] == [10.0, 11.0, 12.0]
    assert [each.schedule for each in task.schedules] == [dict(each.schedule) for each in schedules[:3]]
    assert tables[0].usable() == (task,)


def test_an_archive_without_measurements_gives_no_table(tmp_path: Path) -> None:
    default = plan_program(TASK).realize({})
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("model.py::scale", {})
        archive.save_task(run_id, TASK.model_dump_json())
        _save(archive, run_id, default.text, dict(default.schedule), None)
        archive.start_run("model.py::other", {})
    assert schedule_tables([tmp_path]) == []
