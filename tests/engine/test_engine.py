"""The engine as a process: jobs side by side, cancelled, killed, resumed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from kernel_lsp.engine.captures import Captures
from kernel_lsp.engine.client import ENGINE
from kernel_lsp.engine.engine_loop import PREFIX
from kernel_lsp.engine.jobs import JobQueue
from kernel_lsp.engine.messages import (
    Cancel,
    Check,
    EstimateTarget,
    GetResult,
    InferInputs,
    JobEvent,
    ListRuns,
    Reply,
    Resume,
    RunList,
    RunResult,
)
from kernel_lsp.engine.runner import AWAITED_NICENESS
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE
from kernel_lsp.gpu.specs import has_gpu
from kernel_lsp.process.channel import Channel
from kernel_lsp.process.tree import descendants

from .engines import LONG, QUICK, SCALE, SLOW, engine

CANCEL_S = 1.0
CLOSE_S = 2.0
SLACK = 5.0
"""Other work on the machine may multiply a time."""


def below_us() -> tuple[int, ...]:
    return descendants(os.getpid())


def are_gone(pids: tuple[int, ...]) -> bool:
    """Dead; one that nobody has reaped yet is, too."""
    return not [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


async def test_an_optimization_ends_with_texts_and_writes_nothing(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        reply = await asked.optimize("one", QUICK)
        assert reply.result is not None, reply.error
        result = RunResult.model_validate(reply.result)
        names = ["scale.cu", "scale.py", f"{RUNTIME_MODULE}.py", "__init__.py"]
        assert [file.path.name for file in result.files] == names
        assert result.files[0].text.startswith("// kernel-lsp: 1\n// task: ../scale.py::scale\n")
        assert not (tmp_path / "kernels").exists()
        kinds = asked.kinds("one")
        assert kinds[0] == "job_started"
        assert kinds[-1] == "run_finished"
        assert kinds[kinds.index("run_finished") - 2 : -1] == ["stage_started", "candidate_evaluated"]
        with Archive(tmp_path) as archive:
            assert "stage_started" not in {event.kind for event in archive.events(result.summary.run_id)}
        again = await asked.ask(GetResult(id="again", directory=tmp_path, run_id=result.summary.run_id))
        assert again.result == reply.result
        listed = await asked.ask(ListRuns(id="list", directory=tmp_path))
        assert listed.result is not None
        assert [run.run_id for run in RunList.model_validate(listed.result).runs] == [result.summary.run_id]


async def test_an_estimate_names_the_lines_and_their_shares(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        reply = await asked.ask(EstimateTarget(id="e", directory=tmp_path, target="scale.py::scale"))
        assert reply.result is not None, reply.error
        (line,) = reply.result["lines"]
        assert (line["line"], line["share"]) == (6, 1.0)
        assert line["text"] == "return torch.relu(x * weight + 1.0)"
        assert reply.result["floor_us"] > 0
        (tmp_path / "scale.py").write_text("raise RuntimeError('imported again')\n")
        for_l4 = {"as_captured": True, "settings": {"target_gpu": "L4"}}
        again = await asked.ask(EstimateTarget(id="f", directory=tmp_path, target="scale.py::scale", **for_l4))
        assert again.result is not None, again.error
        assert again.result["estimate"]["gpu"] == "L4"
        assert [line["line"] for line in again.result["lines"]] == [6]
        other = {"as_captured": True, "settings": {"python": "/another/python"}}
        captured = await asked.ask(EstimateTarget(id="g", directory=tmp_path, target="scale.py::scale", **other))
        assert captured.error is not None, "what another interpreter would capture is not known"


async def test_a_check_is_of_the_text_in_the_editor(tmp_path: Path) -> None:
    kernel = tmp_path / "scale.cu"
    kernel.write_text("on disk is something else")
    text = (
        "// kernel-lsp: 1\n// task: scale.py::scale\n// op: scale(x: f32[N, D], weight: f32[D]) -> (out: f32[N, D])\n"
    )
    text += "// launch: f<<<1, 32>>>(x, weight, out)\n"
    text += "__global__ void f(const float* x, const float* weight, float* out) { out[0] = y; }\n"
    async with engine(tmp_path) as asked:
        reply = await asked.ask(Check(id="c", directory=tmp_path, kernel=kernel, text=text))
        assert reply.result is not None, reply.error
        outcome = reply.result["verdict"]["outcome"]
        assert outcome["kind"] == "build_failed"
        assert outcome["findings"][0]["line"] == 5


async def test_a_wrong_target_is_a_problem_with_a_next_step(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        reply = await asked.optimize("one", QUICK, "scale.py::skale")
        assert reply.error is not None
        assert (reply.error.kind, reply.error.next_step) == ("user", "did you mean scale?")


async def test_a_cancelled_job_s_processes_are_gone_within_a_second(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        job = asked.optimize("one", LONG)
        await asked.until("one", "candidate_evaluated")
        running = descendants(asked.client.pid)
        started = time.monotonic()
        await asked.ask(Cancel(id="cancel", job="one"))
        reply = await job
        elapsed_s = time.monotonic() - started
        assert reply.error is not None
        assert reply.error.kind == "cancelled"
        assert len(running) >= 2, running
        assert are_gone(running)
        assert elapsed_s <= CANCEL_S * SLACK


async def test_a_job_that_hangs_in_the_user_s_code_can_be_cancelled(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        (tmp_path / "slow.py").write_text(SLOW)
        job = asked.optimize("one", QUICK, "slow.py::scale")
        await asked.until("one", "stage_started")
        await asked.ask(Cancel(id="cancel", job="one"))
        reply = await asyncio.wait_for(job, CANCEL_S * SLACK)
        assert reply.error is not None
        assert reply.error.kind == "cancelled"


async def test_jobs_of_one_device_queue_and_a_waiting_one_can_be_cancelled(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        first, second = asked.optimize("one", LONG), asked.optimize("two", LONG)
        await asked.until("two", "job_queued")
        await asked.until("one", "stage_started")
        assert asked.kinds("two") == ["job_queued"]
        await asked.ask(Cancel(id="c2", job="two"))
        assert (await second).error is not None
        await asked.ask(Cancel(id="c1", job="one"))
        await first


async def test_a_check_does_not_wait_for_a_run(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        run = asked.optimize("one", LONG)
        await asked.until("one", "stage_started")
        check = await asked.ask(Check(id="c", directory=tmp_path, kernel=tmp_path / "a.cu", text="no plan"))
        assert check.result is not None
        assert not run.done()
        await asked.ask(Cancel(id="cancel", job="one"))
        await run


async def test_a_cancelled_run_resumes_from_what_had_finished(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        settings = {**QUICK, "generations": 2}
        job = asked.optimize("one", settings)
        await asked.until("one", "candidate_evaluated")
        await asked.ask(Cancel(id="cancel", job="one"))
        await job
        (run,) = RunList.model_validate((await asked.ask(ListRuns(id="list", directory=tmp_path))).result).runs
        assert run.is_resumable
        reply = await asked.ask(Resume(id="two", directory=tmp_path, run_id=run.run_id))
        assert reply.result is not None, reply.error
        assert RunResult.model_validate(reply.result).files
        evaluated = [e.event for e in asked.events if e.job == "two" and e.event.kind == "candidate_evaluated"]
        assert any(event.from_archive for event in evaluated)  # type: ignore[union-attr]


async def test_a_killed_engine_takes_its_jobs_along_and_comes_back(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        job = asked.optimize("one", LONG)
        await asked.until("one", "candidate_evaluated")
        running = descendants(asked.client.pid)
        os.kill(asked.client.pid, signal.SIGKILL)
        reply = await asyncio.wait_for(job, 10)
        assert reply.error is not None
        assert reply.error.kind == "engine_died"
        assert asked.deaths == ["signal 9"]
        await wait_until_gone(running)
        (run,) = RunList.model_validate((await asked.ask(ListRuns(id="list", directory=tmp_path))).result).runs
        assert run.is_resumable


async def test_a_job_s_process_that_dies_is_a_problem_of_that_job(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        job = asked.optimize("one", LONG)
        await asked.until("one", "stage_started")
        os.kill(descendants(asked.client.pid)[0], signal.SIGKILL)
        reply = await asyncio.wait_for(job, 10)
        assert reply.error is not None
        assert (reply.error.kind, asked.deaths) == ("died", [])
        assert asked.client.pid


async def test_closing_ends_everything_in_time(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        asked.optimize("one", LONG)
        await asked.until("one", "candidate_evaluated")
        running = descendants(asked.client.pid)
        started = time.monotonic()
        await asked.client.close()
        assert time.monotonic() - started <= CLOSE_S * SLACK
        assert are_gone(running)


async def test_no_scratch_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with engine(workspace) as asked:
        job = asked.optimize("one", LONG)
        await asked.until("one", "candidate_evaluated")
        os.kill(asked.client.pid, signal.SIGKILL)
        await job
        assert list(scratch.glob(f"{PREFIX}*"))
        await asked.ask(ListRuns(id="list", directory=workspace))
        assert len(list(scratch.glob(f"{PREFIX}*"))) == 1
    assert not list(scratch.glob(f"{PREFIX}*"))


async def test_stdout_holds_json_lines_alone(tmp_path: Path) -> None:
    channel = Channel(ENGINE, environment=dict(os.environ), directory=tmp_path)
    await channel.start()
    try:
        messages = channel.messages()
        for line in ({"id": "a"}, {"id": "b", "method": "conquer"}, {"method": "runs"}, {"id": 3, "method": "runs"}):
            channel.send(line)
            reply = await asyncio.wait_for(anext(messages), 30)
            assert reply["error"]["kind"] == "protocol"
        channel.send(json.loads(ListRuns(id="list", directory=tmp_path).model_dump_json()))
        reply = await asyncio.wait_for(anext(messages), 30)
        assert (reply["id"], reply["result"]) == ("list", {"runs": []})
    finally:
        await channel.close(2.0)
    assert channel.returncode == 0


# --- below


async def wait_until_gone(pids: tuple[int, ...], deadline_s: float = 10.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not are_gone(pids):
            await asyncio.sleep(0.02)


OPEN = """\
import torch


def scale(x: torch.Tensor, weight: torch.Tensor):
    return torch.relu(x * weight + 1.0)
"""


def workers() -> set[int]:
    """Return the workers below this process that have not ended."""
    return {pid for pid in below_us() if b"/worker/__main__.py" in _command_line(pid) and not are_gone((pid,))}


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(has_gpu(), reason="a worker that loaded the driver is used for one request of the user's code")
async def test_a_run_uses_the_worker_that_inferred_its_shapes(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        (tmp_path / "scale.py").write_text(OPEN)
        settings = {"device": "cpu", "generations": 1, "proposals": 1}
        inferring = asked.ask(InferInputs(id="infer", directory=tmp_path, target="scale.py::scale", settings=settings))
        await asked.until("infer", "stage_started")
        kept, own = workers(), os.getpriority(os.PRIO_PROCESS, 0)
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in kept} == {own}
        inferred = await inferring
        assert inferred.result is not None, inferred.error
        kept &= workers()  # without the child that tried the shapes
        assert len(kept) == 1
        (tmp_path / "scale.py").write_text(SCALE)
        running = asked.optimize("run", settings)
        await asked.until("run", "run_started")
        assert workers() == kept
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in kept} == {own + AWAITED_NICENESS}
        reply = await running
        assert reply.result is not None, reply.error
        assert not workers()


REGISTERS = """\
import torch

torch.set_default_dtype(torch.float64)
library = torch.library.Library("registers", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")


{pragma}
def scale(x, weight: torch.Tensor):
    return torch.relu(torch.ops.registers.twice(x) * weight + 1.0)
"""
OTHER = """\
import torch


# kernel-lsp: x=f32[64, 256]
def other(x):
    return x + torch.full((256,), 0.5)
"""


@pytest.mark.parametrize("target", ["scale.py::scale", "other.py::other"])
async def test_what_a_file_does_at_import_does_not_outlive_the_inference(tmp_path: Path, target: str) -> None:
    async with engine(tmp_path) as asked:
        (tmp_path / "scale.py").write_text(REGISTERS.format(pragma=""))
        (tmp_path / "other.py").write_text(OTHER)
        settings = {"device": "cpu", "generations": 1, "proposals": 1}
        request = InferInputs(id="infer", directory=tmp_path, target="scale.py::scale", settings=settings)
        assert (await asked.ask(request)).error is None
        pragma = "# kernel-lsp: x=f32[64, 256], weight=f32[256]"
        (tmp_path / "scale.py").write_text(REGISTERS.format(pragma=pragma))
        reply = await asked.optimize("run", settings, target)
        assert reply.result is not None, reply.error
        assert "f64[" not in RunResult.model_validate(reply.result).files[0].text


async def test_the_process_of_an_inference_ends_when_no_run_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_lsp.engine.jobs.KEPT_S", 0.1)
    (tmp_path / "scale.py").write_text(OPEN)
    replied = asyncio.get_running_loop().create_future()

    def say(said: JobEvent | Reply) -> None:
        if isinstance(said, Reply):
            replied.set_result(said)

    (tmp_path / "scratch").mkdir()
    queue = JobQueue(say, tmp_path / "scratch", Captures(tmp_path / "captures"))
    queue.add(InferInputs(id="infer", directory=tmp_path, target="scale.py::scale", settings={"device": "cpu"}))
    assert (await asyncio.wait_for(replied, 120.0)).error is None
    async with asyncio.timeout(60.0):
        while workers() or list((tmp_path / "scratch").iterdir()):
            await asyncio.sleep(0.05)
    await queue.close()
