"""Accesses of the generic and of the async proxy need a `fence.proxy.async` between them, or a wait for the copy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.harness import Ran

SOURCE = """
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define FENCE_ALL asm volatile("fence.proxy.async;" ::: "memory")
#define WAIT_READ asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")
#define SAVE(to) \\
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" ::"l"(to), "r"(at(s)) : "memory"); \\
    asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define ASK(from) \\
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(at(&full)) : "memory"); \\
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" \\
                 ::"r"(at(s)), "l"(from), "r"(at(&full)) : "memory")
#define WAIT(barrier, parity) for (unsigned done = 0; !done;) \\
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \\
                 : "=r"(done) : "r"(at(&barrier)), "r"(parity) : "memory")
#define ARRIVE(barrier) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(&barrier)) : "memory")
extern "C" __global__ void k(const float* x, float* y, float* z) {
    __shared__ __align__(128) float s[128];
    __shared__ __align__(8) unsigned long long full, empty;
    const int t = threadIdx.x;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full)) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(at(&empty)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    BODY
}
"""
SAVED = "s[t] = t; BEFORE __syncthreads(); if (t == 0) { AFTER SAVE(y); WAIT_READ; }"
FILLED = "s[t] = 0; BEFORE __syncthreads(); if (t == 0) { ASK(x); } WAIT(full, 0); y[t] = s[t];"
TWICE = "if (t == 0) { ASK(x); } WAIT(full, 0); float v = s[t]; %s if (t == 0) { ASK(x + 128); }"
AGAIN = f"{TWICE} WAIT(full, 1); y[t] = v; y[t + 128] = s[t];"
USED = AGAIN.replace("; y[t] = v;", ";").replace("= s[t]; %s", "= s[t]; y[t] = v * v; %s", 1)
REUSED = "s[t] = t; FENCE; __syncthreads(); if (t == 0) { SAVE(y); %s } %s s[t] = 7; FENCE; __syncthreads();"
REFILLED = "s[t] = t; FENCE; __syncthreads(); if (t == 0) { SAVE(y); %s ASK(x); } WAIT(full, 0); y[t + 128] = s[t];"
TAIL = "if (t == 0) { SAVE(y + 128); WAIT_READ; }"
STORED = "z[t] = t; %s __syncthreads(); if (t == 0) { ASK(z); } WAIT(full, 0); y[t] = s[t];"


def ran(cuda, body: str, order: str = "forward") -> Ran:
    return cuda(SOURCE.replace("BODY", f"\n{body}\n")).run(
        "k",
        block=128,
        inputs={"x": np.arange(256, dtype="f4")},
        outputs={"y": np.zeros(256, "f4")},
        scratch={"z": np.zeros(128, "f4")},
        watches_races=True,
        thread_order=order,
        fills={"y": 0, "z": 0},
    )


def saved(before: str = "", after: str = "") -> str:
    return SAVED.replace("BEFORE", before).replace("AFTER", after)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(
    "body",
    [
        saved(),
        saved(before="if (t == 0) { FENCE; }"),
        "if (t == 0) { for (int i = 0; i < 128; ++i) s[i] = i; SAVE(y); WAIT_READ; }",
        FILLED.replace("BEFORE", ""),
        AGAIN % "__syncthreads();",
        STORED % "",
        STORED % "FENCE;",
    ],
    ids=["store", "own_fence", "own_store", "fill", "late_use", "tensor", "tensor_by_shared_fence"],
)
def test_a_missing_proxy_fence_is_found(cuda, body, order):
    found = ran(cuda, body, order).finding()
    assert (found["code"], found["severity"]) == ("race", "error")
    assert "with no fence.proxy.async between" in found["message"]
    assert "by a bulk copy, which thread" in found["message"]
    assert f"at line {found['line']}" in found["message"]  # The body is one line.


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(
    "body",
    [
        saved(before="FENCE;"),
        saved(after="FENCE;"),
        saved(before="FENCE_ALL;"),
        FILLED.replace("BEFORE", "FENCE;"),
        AGAIN % "FENCE; __syncthreads();",
        USED % "__syncthreads();",
        AGAIN % "ARRIVE(empty); if (t == 0) { WAIT(empty, 0); }",
        STORED % "FENCE_ALL;",
        "if (t == 0) { ASK(x); } WAIT(full, 0); __syncthreads(); s[t] += 1; FENCE; __syncthreads();"
        "if (t == 0) { SAVE(y); WAIT_READ; }",
        "z[t] = t; FENCE_ALL; __syncthreads(); if (t == 0) { ASK(z); } WAIT(full, 0); y[t] = s[t]; z[t] = 1;",
    ],
    ids=[
        "writers",
        "reader",
        "all_spaces",
        "fill",
        "late_use",
        "used",
        "released",
        "tensor",
        "in_place",
        "read_tensor",
    ],
)
def test_ordered_proxies_are_clean(cuda, body, order):
    assert ran(cuda, body, order).findings == []


def test_a_load_under_a_predicate_is_used_under_it(cuda):
    body = TWICE % "if (t < 99) { y[t] = v; } ARRIVE(empty); if (t == 0) { WAIT(empty, 0); }"
    assert ran(cuda, f"{body} WAIT(full, 1); __syncthreads(); y[t + 128] = s[t];").findings == []


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("waits", [("", "__syncthreads();"), ("WAIT_READ;", "")], ids=["no_wait", "no_barrier"])
def test_a_write_over_the_source_of_a_copy_is_found(cuda, waits, order):
    found = ran(cuda, REUSED % waits + TAIL, order).finding()
    assert found["code"] in ("copy-in-flight", "race")
    if not waits[0]:
        assert "cp.async.bulk.wait_group.read is missing" in found["message"]


def test_a_copy_over_the_source_of_another_waits_for_it(cuda):
    assert ran(cuda, REFILLED % "WAIT_READ;").findings == []
    found = ran(cuda, f"{REFILLED % ''} if (t == 0) WAIT_READ;").finding()
    assert "cp.async.bulk.wait_group.read is missing" in found["message"]


def test_a_write_after_the_wait_is_clean(cuda):
    report = ran(cuda, REUSED % ("WAIT_READ;", "__syncthreads();") + TAIL)
    assert report.findings == []
    assert (report.arrays["y"] == [*range(128), *[7] * 128]).all()


def test_the_copies_of_a_ring_are_waited_for_in_order(cuda):
    body = """
    __shared__ __align__(128) float two[2][128];
    for (int i = 0; i < 6; ++i) {
        if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        __syncthreads();
        float* s = two[i % 2];
        s[t] = i;
        FENCE;
        __syncthreads();
        if (t == 0) { SAVE(y + i % 2 * 128); }
    }
    if (t == 0) WAIT_READ;"""
    assert ran(cuda, body).findings == []
    found = ran(cuda, body.replace("read 1;", "read 2;")).finding()
    assert found["code"] == "copy-in-flight"
