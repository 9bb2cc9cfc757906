"""A launch whose registers or cooperative blocks do not fit on the GPU is refused before anything runs."""

from __future__ import annotations

import pytest

from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.verdict import Built, KernelFacts
from kernel_lsp.evaluate.launch_limits import refused_launch
from kernel_lsp.gpu.specs import find_gpu

GPU = find_gpu("H200")


def built(n_registers: int) -> Built:
    facts = KernelFacts(
        kernel="k",
        symbol="_k",
        n_registers=n_registers,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=0,
        shared_bytes=0,
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
