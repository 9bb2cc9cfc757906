"""A launch whose registers, cooperative blocks or shared memory do not fit is refused before anything runs."""

from __future__ import annotations

import pytest

from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.verdict import Built, KernelFacts
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.verify.probes.finder import finder_of
from kernel_lsp.verify.probes.launch_limits import refused_launch, refused_when_larger
from tests.verify.copies import prepared

GPU = find_gpu("H200")


def built(n_registers: int, shared_bytes: int = 0) -> Built:
    facts = KernelFacts(
        kernel="k",
        symbol="_k",
        n_registers=n_registers,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=0,
        shared_bytes=shared_bytes,
    )
    return Built(architecture="sm_90", ptx="", symbols={"k": "_k"}, kernels=(facts,))


def bound(n_blocks: int, n_threads: int, **attributes: int) -> BoundOperation:
    launch = BoundLaunch(
        kernel="k", grid=(n_blocks, 1, 1), block=(n_threads, 1, 1), shared_bytes=0, arguments=(), attributes=attributes
    )
    return BoundOperation.model_construct(name="f", tensors=(), steps=(launch,))


@pytest.mark.parametrize(("n_registers", "n_threads"), [(65, 1024), (129, 512), (73, 896)])
def test_more_registers_than_a_block_can_have_are_refused(n_registers, n_threads):
    refused = refused_launch(built(n_registers), bound(4, n_threads), GPU)
    assert refused is not None
    assert refused.findings[0].code == "invalid-launch"
    assert f"needs {n_registers} registers in each of {n_threads} threads" in refused.message


@pytest.mark.parametrize(("n_registers", "n_threads"), [(64, 1024), (128, 512), (255, 256), (72, 896), (0, 1024)])
def test_as_many_registers_as_a_block_can_have_are_not(n_registers, n_threads):
    assert refused_launch(built(n_registers), bound(4, n_threads), GPU) is None


def test_registers_count_for_how_many_cooperative_blocks_run_at_once():
    fits = 2 * GPU.n_sms
    assert refused_launch(built(128), bound(fits, 256, cooperative=1), GPU) is None
    refused = refused_launch(built(128), bound(fits + 1, 256, cooperative=1), GPU)
    assert refused is not None
    assert "by its registers" in refused.message


def test_a_launch_that_is_not_cooperative_may_have_any_number_of_blocks():
    assert refused_launch(built(128), bound(1 << 20, 256), GPU) is None


def test_a_launch_without_blocks_and_kernels_of_which_nothing_is_known_pass():
    assert refused_launch(built(255), bound(0, 1024), GPU) is None
    unknown = built(255).model_copy(update={"kernels": ()})
    assert refused_launch(unknown, bound(1, 1024), GPU) is None


def refused_later(*directives: str, shared_bytes: int = 0) -> str:
    """Return why the launches of a copy of f32[B, D] are refused at sizes larger than (6, 1000), or nothing."""
    plan = prepared(*directives)
    facts = built(32, shared_bytes).model_copy(update={"symbols": {"k<>": "_k", "k<true>": "_k"}})
    found = refused_when_larger(facts, finder_of(plan, "forward"), plan.bind("forward", {"B": 6, "D": 1000}), GPU)
    return found.message if found is not None else ""


@pytest.mark.parametrize(
    ("directives", "shared_bytes", "message"),
    [
        (["launch: k<<<B, 32, D * 4>>>(x, out, D)"], 0, "exclude"),
        (["where: D % 4 == 0", "launch: k<<<B, 32, D * 4>>>(x, out, D)"], 0, "by '// where: D * 4 <= 232448'"),
        (["where: D <= 60000", "launch: k<<<B, 32, D * 4>>>(x, out, D)"], 0, "(at B = 2, D = 59904;"),
        (["where: D <= 57344", "launch: k<<<B, 32, D * 4>>>(x, out, D)"], 4096, "where: D * 4 <= 228352'"),
        (["launch: k<<<B, 32, B * 8 + 64>>>(x, out, D)"], 0, "where: B * 8 + 64 <= 232448'"),
        (
            ["launch[D % 2 == 0]: k<<<B, 32, D * 4>>>(x, out, D)", "launch[D % 2 == 1]: k<true><<<B, 32>>>(x, out, D)"],
            0,
            "by 'launch[(D % 2 == 0) and D * 4 <= 232448]', or exclude them",
        ),
    ],
)
def test_shared_memory_that_grows_past_what_a_block_can_have_is_refused(directives, shared_bytes, message):
    assert message in refused_later(*directives, shared_bytes=shared_bytes)


@pytest.mark.parametrize(
    "directives",
    [
        ["launch: k<<<B, 32, 4096>>>(x, out, D)"],
        ["where: D * 4 <= 232448", "launch: k<<<B, 32, D * 4>>>(x, out, D)"],
        ["where: D <= 8192", "launch: k<<<B, 32, D * 4 + 512>>>(x, out, D)"],
        ["launch: k<<<B, 32, min(D, 1024) * 4>>>(x, out, D)"],
        ["launch[D <= 8192]: k<<<B, 32, D * 4>>>(x, out, D)", "launch[D > 8192]: k<true><<<B, 32>>>(x, out, D)"],
    ],
)
def test_shared_memory_that_the_contract_bounds_is_not(directives):
    assert refused_later(*directives) == ""
