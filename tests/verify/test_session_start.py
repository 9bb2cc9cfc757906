"""Check what a session begins with, and what begins before its task is known."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import Settings, load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import Rejected
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.ptx.executor import Loaded, LoadOutcome, PtxExecutor
from kernel_lsp.verify.cpu.executor_pool import ExecutorPool
from kernel_lsp.verify.session import evaluation
from kernel_lsp.verify.session import start as session_start
from kernel_lsp.verify.session.check_kernel import find_task
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.start import SessionStart, gpu_number, may_use_gpu

MODULE = "the text"
DOUBLED = "import torch\n\n\n# kernel-lsp: x=f32[N=1000]\ndef doubled(x):\n    return x * 2\n"
DOUBLING = """// kernel-lsp: 1
// op: doubled(x: f32[N]) -> (out: f32[N])
// launch: k<<<ceil_div(N, 256), 256>>>(x, out, N)
__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
"""


class Executor(PtxExecutor):
    """Starts no process, and remembers what it loaded."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.is_running = False

    async def __aenter__(self) -> Executor:
        self.is_running = True
        return self

    @property
    def is_alive(self) -> bool:
        return self.is_running

    async def close(self) -> None:
        self.is_running = False

    async def load(self, ptx: str, file_name: str, *, cpu_s: float = 1.0, is_quick: bool = False) -> LoadOutcome:
        self.loaded.append(ptx)
        return Loaded(())


async def loads(pool: ExecutorPool, *modules: str) -> list[str]:
    """Return what the first executor of a pool has loaded when it was asked for these, one after the other."""
    async with pool.executor() as executor:
        for module in modules:
            assert isinstance(await pool.load(executor, module), Loaded)
    await pool.close()
    assert isinstance(executor, Executor)
    return executor.loaded


def pool_with(*modules: str | None) -> ExecutorPool:
    pool = ExecutorPool(Executor, 2, 1)
    pool.start_with(*(lambda given=module: asyncio.sleep(0, given) for module in modules))
    pool.start()  # as an evaluator does, which must not start another
    return pool


async def test_a_module_that_was_loaded_ahead_is_not_loaded_again() -> None:
    assert await loads(pool_with(MODULE), MODULE) == ["the text"]


async def test_a_module_that_was_loaded_last_is_not_loaded_again() -> None:
    """Other evaluators ask for it in turn; each run starts with its variables as they are at first."""
    assert await loads(pool_with(MODULE), MODULE, MODULE) == ["the text"]


def counted_executors() -> tuple[Callable[[], Executor], list[Executor]]:
    """Return a function that makes executors, and the list of those that it made."""
    made: list[Executor] = []

    def make() -> Executor:
        made.append(Executor())
        return made[-1]

    return make, made


async def test_a_pool_that_several_evaluators_enter_starts_one_executor() -> None:
    make, made = counted_executors()
    pool = ExecutorPool(make, 2, 1)
    for _ in range(2):
        pool.start()
        async with pool.executor():
            pass
    await pool.close()
    assert len(made) == 1


async def test_what_one_candidate_needs_at_once_starts_together() -> None:
    make, made = counted_executors()
    n_builds = itertools.count()

    async def build() -> str:
        next(n_builds)
        return MODULE

    pool = ExecutorPool(make, 8, 3)
    pool.start_with(build)
    async with pool.executor(), pool.executor() as second:
        assert len(made) == 3
        assert isinstance(await pool.load(second, MODULE), Loaded)
    await pool.close()
    assert [executor.loaded for executor in made] == [["the text"]] * 3
    assert next(n_builds) == 1
    assert not any(executor.is_running for executor in made)


async def test_another_module_is_loaded_in_its_place_and_then_so_is_the_first() -> None:
    other = "another text"
    assert await loads(pool_with(MODULE), other, MODULE) == ["the text", "another text", "the text"]


async def test_without_a_build_the_first_executor_is_merely_warm() -> None:
    assert await loads(pool_with(None), MODULE) == ["the text"]


async def test_the_same_build_for_the_device_is_not_loaded_again_and_another_is() -> None:
    other = "for another architecture"
    assert await loads(pool_with(MODULE, MODULE), MODULE) == ["the text"]
    assert await loads(pool_with(MODULE, other), other) == ["the text", "for another architecture"]


async def test_a_build_that_fails_ahead_leaves_a_warm_executor() -> None:
    async def fails() -> str:
        raise EnvironmentProblem("no compiler")

    pool = ExecutorPool(Executor, 2, 1)
    pool.start_with(fails)
    assert await loads(pool, MODULE) == ["the text"]


async def test_a_build_that_breaks_ahead_is_told_and_keeps_nobody_waiting() -> None:
    async def breaks() -> str:
        raise RuntimeError("a fault of ours")

    pool = ExecutorPool(Executor, 2, 2)
    pool.start_with(breaks, breaks)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        async with asyncio.timeout(5), pool.executor():
            pass
    await pool.close()


async def test_who_wants_what_is_loaded_ahead_gets_an_executor_that_has_loaded_it() -> None:
    made: list[Executor] = []

    class Slow(Executor):
        async def load(self, ptx: str, file_name: str, *, cpu_s: float = 1.0, is_quick: bool = False) -> LoadOutcome:
            await asyncio.sleep(0.001)
            return await super().load(ptx, file_name)

    def make() -> Executor:
        made.append(Slow())
        return made[-1]

    other = "another text"
    pool = ExecutorPool(make, 8, 3)
    pool.start_with()
    with pool.loading_ahead(MODULE, 2):
        await asyncio.sleep(0.01)
        async with pool.executor(other) as third:
            assert third is made[2]
            async with pool.executor(MODULE) as first, pool.executor(MODULE) as second:
                assert await pool.load(first, MODULE) == await pool.load(second, MODULE) == Loaded(())
    assert [executor.loaded for executor in made] == [["the text"], ["the text"], []]
    async with pool.executor(MODULE) as again:  # behind it, nobody waits for anybody
        assert again in made[:2]
    await pool.close()
    assert not any(executor.is_running for executor in made)


async def test_who_wants_what_is_being_loaded_waits_for_it_and_a_pool_that_closes_does_not() -> None:
    may_go_on = asyncio.Event()

    class Slow(Executor):
        async def load(self, ptx: str, file_name: str, *, cpu_s: float = 1.0, is_quick: bool = False) -> LoadOutcome:
            await may_go_on.wait()
            return await super().load(ptx, file_name)

    async def wanted(pool: ExecutorPool) -> Executor:
        async with pool.executor(MODULE) as executor:
            await pool.load(executor, MODULE)
        assert isinstance(executor, Executor)
        return executor

    pool = ExecutorPool(Slow, 8, 1)
    with pool.loading_ahead(MODULE, 1):
        waiting = asyncio.create_task(wanted(pool))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        may_go_on.set()
        assert (await waiting).loaded == ["the text"]
    may_go_on.clear()
    with pool.loading_ahead("of one that is refused", 2):
        await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await pool.close()


async def test_an_executor_loads_a_candidate_before_its_cases_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task.py").write_text(DOUBLED)
    source = find_task(tmp_path / "k.cu", "task.py::doubled", None, tmp_path)
    async with Session(load_settings(tmp_path, {"device": "cpu"})) as session:
        verifier = await session.verifier(source, await session.capture(source, with_backward=False))
        executors = verifier.runs.by.platform.cpu.executors
        order, load, audited = list[str](), executors.load, evaluation.audited

        async def loaded(executor: PtxExecutor, module: str) -> LoadOutcome:
            order.append("load")
            return await load(executor, module)

        def audit(*of: Any) -> Rejected | None:
            order.append("audit")
            return audited(*of)

        async with executors.executor():
            pass  # one has started
        monkeypatch.setattr(executors, "load", loaded)
        monkeypatch.setattr(evaluation, "audited", audit)
        candidate = Candidate(text=DOUBLING, origin=Origin(proposer="user"))
        assert (await verifier.verify(candidate, "screen")).is_correct
    assert order[:2] == ["load", "audit"]


async def test_an_executor_that_breaks_ahead_is_told_where_it_is_wanted() -> None:
    class Broken(Executor):
        async def load(self, ptx: str, file_name: str, *, cpu_s: float = 1.0, is_quick: bool = False) -> LoadOutcome:
            raise RuntimeError("a fault of ours")

    pool = ExecutorPool(Broken, 2, 1)
    with pool.loading_ahead(MODULE, 1), pytest.raises(RuntimeError, match="a fault of ours"):
        async with asyncio.timeout(5), pool.executor(MODULE):
            pass
    await pool.close()


async def test_an_executor_that_died_meanwhile_loads_again() -> None:
    pool = pool_with(MODULE)
    async with pool.executor() as executor:
        assert isinstance(executor, Executor)
        executor.is_running = False
        await pool.load(executor, MODULE)
    assert len(executor.loaded) == 2


async def test_a_pool_that_nobody_used_ends_its_first() -> None:
    make, made = counted_executors()
    pool = ExecutorPool(make, 2, 1)
    pool.start_with(asyncio.get_running_loop().create_future)  # it never comes to its value
    await asyncio.sleep(0.01)
    await pool.close()
    assert [executor.is_running for executor in made] == [False]


def settings(folder: Path, python: Path) -> Settings:
    return load_settings(folder, {"device": "cpu", "python": python, "cache_directory": folder / "cache"})


async def test_what_is_wrong_with_the_machine_is_said_when_it_is_needed(tmp_path: Path) -> None:
    async with SessionStart(settings(tmp_path, tmp_path / "no_python")) as start:
        with pytest.raises(EnvironmentProblem, match="does not exist"):
            start.check()
        with pytest.raises(EnvironmentProblem, match="does not exist"):
            async with Session(start.settings, start):
                pass


async def test_a_program_that_is_no_interpreter_is_named_though_it_was_started(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho hello\n")
    python.chmod(0o755)
    async with SessionStart(settings(tmp_path, python)) as start:
        with pytest.raises(EnvironmentProblem, match="is not a Python interpreter"):
            start.check()


async def test_compilers_start_with_it_where_processors_and_a_gpu_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_start, "has_gpu", lambda: True)
    for n_processors, n_started in ((session_start.MANY_PROCESSORS, 2), (session_start.MANY_PROCESSORS - 1, 0)):
        monkeypatch.setattr("os.cpu_count", lambda n=n_processors: n)
        async with SessionStart(load_settings(tmp_path, {"device": "cuda"}), n_compiled_modes=2) as start:
            start.check()
            while not all(compiler.is_alive for compiler in start.compilers):  # the test's deadline is its limit
                await asyncio.sleep(0.01)
            assert len(start.compilers) == n_started
        assert not any(compiler.is_alive for compiler in start.compilers)
    async with SessionStart(load_settings(tmp_path, {"device": "cpu"}), n_compiled_modes=2) as start:
        assert not start.compilers


async def test_it_ends_while_its_worker_still_imports(tmp_path: Path) -> None:
    async with SessionStart(load_settings(tmp_path, {"device": "cpu"})) as start:
        start.check()
        assert start.worker.is_alive
        scratch = start.scratch
    assert not start.worker.is_alive
    assert not scratch.exists()


@pytest.mark.parametrize(("device", "number"), [("auto", 0), ("cuda", 0), ("cuda:3", 3)])
def test_a_device_names_the_number_of_its_gpu(device: str, number: int) -> None:
    assert gpu_number(Settings(device=device)) == number


@pytest.mark.parametrize(
    ("device", "is_there", "may"), [("auto", True, True), ("auto", False, False), ("cpu", True, False)]
)
def test_a_gpu_is_opened_where_it_is_allowed_and_there(
    monkeypatch: pytest.MonkeyPatch, device: str, is_there: bool, may: bool
) -> None:
    monkeypatch.setattr(session_start, "has_gpu", lambda: is_there)
    assert may_use_gpu(Settings(device=device)) is may


@pytest.mark.parametrize(
    ("is_beside_gpu", "size", "is_quick"), [(True, 1 << 20, True), (True, 9, False), (False, 1 << 20, False)]
)
async def test_beside_a_gpu_long_modules_are_compiled_quickly(is_beside_gpu: bool, size: int, is_quick: bool) -> None:
    asked: list[bool] = []

    class Noting(Executor):
        async def load(self, ptx: str, file_name: str, *, cpu_s: float = 1.0, is_quick: bool = False) -> LoadOutcome:
            asked.append(is_quick)
            return await super().load(ptx, file_name, cpu_s=cpu_s)

    pool = ExecutorPool(Noting, 1, 1, is_beside_gpu=is_beside_gpu)
    module = "." * size
    async with pool.executor(module) as executor:
        await pool.load(executor, module)
    await pool.close()
    assert asked == [is_quick]
