"""Foreign kernels, right and wrong, on a CPU: what each trick of a host code comes to."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kernel_lsp.core.verdict import CaseResult, Crashed, Mismatch
from kernel_lsp.process.confinement import SandboxLevel, support
from kernel_lsp.verify.gpu.slot import Lost

from .harness import Bench, Outcome, model, started

pytest.importorskip("torch")
pytestmark = pytest.mark.asyncio(loop_scope="module")
RIGHT = "return x * 2 + eps"


@pytest_asyncio.fixture(name="shared", scope="module", loop_scope="module")
async def a_shared_process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """One process for all files that leave it as it was: importing torch takes longer than any case."""
    folder = tmp_path_factory.mktemp("shared")
    async with started(folder) as process:
        yield Bench(folder, process)


async def outcomes(bench: Bench, text: str, n_cases: int = 3) -> list[Outcome]:
    """Run several cases of one shape, until one fails."""
    opened = await bench.open(text)
    assert isinstance(opened, dict), opened
    assert opened["status"] == "opened", opened
    found: list[Outcome] = []
    while len(found) < n_cases and all(isinstance(each, CaseResult) for each in found):
        found.append(await bench.run(seed=len(found)))
    return found


async def last(folder: Path, text: str) -> Outcome:
    """In a process of its own."""
    async with started(folder) as process:
        return (await outcomes(Bench(folder, process), text))[-1]


@pytest.mark.parametrize(
    "text",
    [
        model(RIGHT),
        model("return torch.add(x, x).add_(eps)"),
        model("out = torch.empty_like(x)\ntorch.mul(x, 2, out=out)\nreturn (out + eps,)"),
        model("try:\n    return x * 2 + eps\nexcept RuntimeError:\n    raise"),
    ],
)
async def test_a_right_one_passes(shared: Bench, text: str) -> None:
    assert [type(each) for each in await outcomes(shared, text)] == [CaseResult] * 3


@pytest.mark.parametrize(
    ("body", "before"),
    [
        ("return torch.zeros_like(x)", ""),
        ("return x", ""),
        ("return torch.empty_like(x)", ""),
        ("return torch.full_like(x, float('nan'))", ""),
        ("return CACHE.setdefault(x.data_ptr(), x * 2 + eps)", "CACHE = {}"),
        ("return CACHE.setdefault(tuple(x.shape), x * 2 + eps)", "CACHE = {}"),
        ("CALLS.append(1)\nreturn x * 2 + eps if len(CALLS) < 3 else x", "CALLS = []"),
        ("out = torch.empty_like(x)\nout[:-1] = x[:-1] * 2 + eps\nreturn out", ""),
    ],
    ids=["zeros", "identity", "unwritten", "nan", "by pointer", "by shape", "by call", "skipped tail"],
)
async def test_a_wrong_one_does_not(shared: Bench, body: str, before: str) -> None:
    assert isinstance((await outcomes(shared, model(body, before)))[-1], Mismatch)


@pytest.mark.parametrize(
    ("body", "before", "said"),
    [
        ("out = x * 2 + eps\nx.zero_()\nreturn out", "", "changed its inputs"),
        ("raise ValueError('no')", "", "ValueError: no"),
        ("x.view(-1).as_strided((64,), (1,))[40:] = 0\nreturn x * 2 + eps", "", "wrote outside of its inputs"),
    ],
    ids=["zeroes inputs", "raises", "guards"],
)
async def test_what_no_kernel_may_do_is_told(shared: Bench, body: str, before: str, said: str) -> None:
    found = (await outcomes(shared, model(body, before)))[-1]
    assert isinstance(found, Crashed)
    assert said in found.message


@pytest.mark.parametrize(
    ("body", "before", "said"),
    [
        ("return (x * 2 + eps).as_subclass(Lazy)", "class Lazy(torch.Tensor): pass", "no plain tensor"),
        ("return (x * 2 + eps).to_sparse()", "", "no dense tensor"),
        ("return (x * 2 + eps).double()", "", "is f64"),
        ("return (x * 2 + eps)[:1]", "", "has the shape [1, 8], and the task's is [4, 8]"),
        ("return x, x", "", "returns 2 tensors"),
    ],
    ids=["subclass", "sparse", "dtype", "shape", "count"],
)
async def test_a_result_of_another_kind_is_a_mismatch_and_no_crash(
    shared: Bench, body: str, before: str, said: str
) -> None:
    found = (await outcomes(shared, model(body, before)))[-1]
    assert isinstance(found, Mismatch)
    assert said in found.message


async def test_an_early_exit_is_no_verdict(tmp_path: Path) -> None:
    found = await last(tmp_path, model("getattr(__import__('os'), '_exit')(0)"))
    assert isinstance(found, Crashed)
    assert "its process ended" in found.message


async def test_a_patched_torch_does_not_reach_the_judge(tmp_path: Path) -> None:
    """It makes every comparison in its own process say yes, and is judged elsewhere."""
    before = "torch.equal = lambda a, b: True\ntorch.allclose = lambda *a, **k: True"
    assert isinstance(await last(tmp_path, model("return x", before)), Mismatch)


async def test_an_answer_without_the_token_is_not_taken(tmp_path: Path) -> None:
    """It answers in place of the protocol, on every descriptor that it finds."""
    body = (
        "import os\n"
        "for descriptor in range(3, 20):\n"
        "    try:\n"
        '        os.write(descriptor, b\'{"status": "ran", "token": "guessed", "spread": {}}\\n\')\n'
        "    except OSError:\n"
        "        pass\n"
        "return x"
    )
    found = await last(tmp_path, model(body))
    assert isinstance(found, Crashed)
    assert "something else than what it was asked" in found.message


async def test_outputs_that_change_later_are_told(tmp_path: Path) -> None:
    body = "out = x * 2 + eps\nif KEPT:\n    KEPT[-1].zero_()\nKEPT.append(out)\nreturn out"
    async with started(tmp_path) as process:
        bench = Bench(tmp_path, process)
        await bench.open(model(body, "KEPT = []"))
        await bench.run()
        looked = await process.ask("look_again", {}, deadline_s=30.0)
        assert isinstance(looked, dict)
        assert looked["changed"]


async def test_a_file_that_does_not_import_is_refused_with_its_line(tmp_path: Path) -> None:
    async with started(tmp_path) as process:
        opened = await Bench(tmp_path, process).open("import torch\nraise RuntimeError('broken')\nclass ModelNew: pass")
        assert isinstance(opened, dict)
        assert opened["status"] == "refused"
        assert opened["line"] == 2


async def test_an_inline_extension_is_asked_for_and_not_built_there(tmp_path: Path) -> None:
    before = (
        "from torch.utils.cpp_extension import load_inline\n"
        "built = load_inline(name='e', cpp_sources='int f() { return 1; }', functions=['f'])"
    )
    async with started(tmp_path) as process:
        opened = await Bench(tmp_path, process).open(model(RIGHT, before))
        assert isinstance(opened, dict)
        assert opened["status"] == "needs_build"
        assert "int f() { return 1; }" in opened["text"]
        assert 'm.def("f", &f' in opened["text"]
        assert opened["suffix"] == ".cpp"


@pytest.mark.skipif(support().level in (SandboxLevel.NONE, SandboxLevel.LIMITS), reason="needs Landlock")
async def test_it_cannot_read_what_it_was_not_given(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    secret = tmp_path / "expected.bin"
    secret.write_text("values")
    async with started(tmp_path / "inside") as process:
        bench = Bench(tmp_path / "inside", process)
        opened = await bench.open(model(RIGHT, f"open({str(secret)!r}).read()"))
        assert isinstance(opened, dict)
        assert "Permission denied" in opened["message"]


@pytest.mark.skipif(support().level is not SandboxLevel.LANDLOCK_SECCOMP, reason="needs a system-call filter")
async def test_it_starts_no_program(tmp_path: Path) -> None:
    async with started(tmp_path) as process:
        opened = await Bench(tmp_path, process).open(
            model(RIGHT, "import os\nos.posix_spawn('/bin/true', ['true'], {})")
        )
        assert isinstance(opened, Lost) or opened["status"] == "refused"


@pytest.mark.skipif(support().level in (SandboxLevel.NONE, SandboxLevel.LIMITS), reason="needs Landlock")
@pytest.mark.parametrize("reach", ["expected file", "this process's memory"])
async def test_what_is_expected_is_in_reach_without_a_sandbox_only(tmp_path: Path, reach: str) -> None:
    """The trick works at the level that hides nothing, which a verdict says, and fails at this machine's."""
    (tmp_path / "expected.bin").write_text("values")
    path = {"expected file": tmp_path / "expected.bin", "this process's memory": Path(f"/proc/{os.getpid()}/maps")}
    text = model(RIGHT, f"open({str(path[reach])!r}).read(1)")
    statuses = []
    for level in (SandboxLevel.NONE, support().level):
        folder = tmp_path / level.value
        folder.mkdir()
        async with started(folder, level) as process:
            opened = await Bench(folder, process).open(text)
            assert isinstance(opened, dict)
            statuses.append(opened["status"])
    assert statuses == ["opened", "refused"]
