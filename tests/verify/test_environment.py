"""Kernels that look at what a GPU leaves open are run as it may come out otherwise; others are not."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, BoundTensor, TensorArgument
from kernel_lsp.core.verdict import Built
from kernel_lsp.ptx.run.layout import MAX_PLACE
from kernel_lsp.verify.model.cases import PAGE_BYTES, Case
from kernel_lsp.verify.model.environment import (
    ALLOCATION_BYTES,
    Circumstances,
    environments_of,
    offset_of,
    shared_start_of,
)

LAUNCH = BoundLaunch(
    kernel="k",
    grid=(1, 1, 1),
    block=(128, 1, 1),
    shared_bytes=0,
    arguments=(TensorArgument(tensor="x"), TensorArgument(tensor="out")),
)
BOUND = BoundOperation(
    name="f",
    dims={},
    tensors=(
        BoundTensor(name="x", dtype=DType.F32, shape=(8,), role="input"),
        BoundTensor(name="out", dtype=DType.F32, shape=(8,), role="output"),
    ),
    steps=(LAUNCH,),
)
CASE = Case("forward", (("N", 8),), "normal", 3, "forward")


def others(*lines: str) -> list[Circumstances]:
    """Return the facts of a kernel with the address of its result in `%rd1`."""
    body = "\n".join(f"    {line};" for line in ("ld.param.u64 %rd1, [k_param_1]", *lines, "ret"))
    ptx = f".visible .entry k(\n    .param .u64 k_param_0\n)\n{{\n{body}\n}}\n"
    built = Built(ptx=ptx, symbols={"k": "k"}, architecture="sm_90")
    return [other.circumstances for other in environments_of(built)]


def test_an_ordinary_kernel_is_run_in_no_others() -> None:
    assert others("st.global.f32 [%rd1], %f1") == []


def test_shared_memory_lies_elsewhere_in_other_cases_where_alignments_stay() -> None:
    starts = {shared_start_of(Case("forward", (), "normal", seed, "forward")) for seed in range(100)}
    assert starts == {1024 * n for n in range(8)}


def test_one_that_asks_for_active_lanes_is_run_with_lanes_apart() -> None:
    assert others("activemask.b32 %r1") == [{"keeps_lanes_apart": True}]


def test_tensors_lie_elsewhere_in_every_case_as_far_apart_as_there_is_room() -> None:
    cases = [Case("forward", (("N", 8),), "normal", seed, "forward") for seed in range(64)]
    places = [offset_of(case, tensor) for case in cases for tensor in BOUND.tensors]
    assert len(set(places)) == len(places)
    assert all(-MAX_PLACE <= place < MAX_PLACE for place in places)
    assert all(0 < sum(place >> bit & 1 for place in places) < len(places) for bit in range(12, 38))


def test_a_new_tensor_is_aligned_as_an_allocator_does_it_and_no_better() -> None:
    cases = [Case("forward", (("N", 8),), "normal", seed, "forward") for seed in range(64)]
    in_page = {offset_of(case, BOUND.tensors[1]) % PAGE_BYTES for case in cases}
    assert in_page == set(range(0, PAGE_BYTES, ALLOCATION_BYTES))
