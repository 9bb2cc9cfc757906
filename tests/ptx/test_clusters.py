"""Thread block clusters: their shape, their barrier, and the shared memory of their blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.harness import CLUSTER

ORDERS = ("forward", "reverse", "random")
HEAD = f'{CLUSTER}\n\nextern "C" __global__ void '
COOPERATIVE_GROUPS = "#include <cooperative_groups.h>\nusing cooperative_groups::cluster_group;\n"


def source(body, *, dims="4, 1, 1", parameters="const float* x, float* out", shared="__shared__ float s[32];"):
    """A kernel whose body starts on line 5; `c` is its cluster."""
    attribute = f"__cluster_dims__({dims}) " if dims else ""
    return f"{HEAD}{attribute}k({parameters}) {{\n{shared} cluster_group c{{}};\n{body}\n}}\n"


def launch(executor, **options):
    options.setdefault("inputs", {"x": np.arange(256, dtype="f4")})
    options.setdefault("outputs", {"out": np.full(256, -1, "f4")})
    return executor.run("k", grid=options.pop("grid", 8), block=options.pop("block", 32), **options)


def check_output(executor, expected, *, watched=("reverse",), **options):
    """No finding and this output, in every order of threads and blocks, nor a race in those that are `watched`."""
    for order in ORDERS:
        ran = launch(executor, thread_order=order, seed=3, watches_races=order in watched, **options)
        assert ran.findings == []
        np.testing.assert_array_equal(ran.arrays["out"], np.asarray(expected, "f4"))


def check_finding(executor, code, *parts, line=None, **options):
    """One finding with this code, whose message holds these texts."""
    found = launch(executor, **options).finding()
    assert found["code"] == code, found
    assert all(part in found["message"] for part in parts), found
    if line is not None:
        assert found["line"] == line
    return found


SUM = """s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
c.sync();
float total = 0;
for (int rank = 0; rank < c.num_blocks(); rank++) total += c.map_shared_rank(s, rank)[threadIdx.x];
out[blockIdx.x * 32 + threadIdx.x] = total;
"""
SUMS = np.arange(256).reshape(2, 4, 32).sum(1, keepdims=True).repeat(4, 1).ravel()


def test_blocks_read_what_the_others_of_their_cluster_wrote(cuda):
    check_output(cuda(source(SUM + "c.sync();")), SUMS)


def test_cooperative_groups_do_the_same(cuda):
    text = source(SUM + "c.sync();").replace(f"{CLUSTER}\n\n", COOPERATIVE_GROUPS)
    check_output(cuda(text.replace("c{};", "c = cooperative_groups::this_cluster();")), SUMS)


def test_a_block_that_leaves_before_the_others_have_read_its_memory_is_found(cuda):
    check_finding(cuda(source(SUM)), "cluster-memory", "shared memory of block 0", "has ended", line=8)


def test_a_missing_sync_before_the_first_remote_access_is_found(cuda):
    body = (
        "c.map_shared_rank(s, (c.block_rank() + 1) % 4)[threadIdx.x] = 1; c.sync(); out[threadIdx.x] = s[threadIdx.x];"
    )
    check_finding(cuda(source(body)), "cluster-memory", "writes 4 bytes", "block 1", "has not started", line=5)
    check_finding(cuda(source(body)), "cluster-memory", "block 0", "has not started", thread_order="reverse")


def test_a_missing_sync_between_store_and_remote_load_shows_in_the_result(cuda):
    text = SUM.replace("c.sync();", "", 1)
    executor = cuda(source(f"c.sync();\n{text}c.sync();"))
    ran = launch(executor)
    assert [(one["code"], one["severity"]) for one in ran.findings] == [("uninitialized-read", "warning")]
    assert np.isnan(ran.arrays["out"][:32]).all()


def test_the_histogram_of_the_programming_guide_over_a_cluster(cuda):
    body = """for (int i = threadIdx.x; i < 8; i += blockDim.x) s[i] = 0;
c.sync();
int bin = (int)x[blockIdx.x * 32 + threadIdx.x] % 16;
atomicAdd(c.map_shared_rank(s, bin / 8) + bin % 8, 1);
c.sync();
for (int i = threadIdx.x; i < 8; i += blockDim.x) atomicAdd(&out[c.block_rank() * 8 + i], s[i]);
"""
    text = source(body, dims="2, 1, 1", parameters="const float* x, int* out", shared="__shared__ int s[8];")
    values = np.random.default_rng(1).integers(0, 1000, 256).astype("f4")
    expected = np.bincount(values.astype(int) % 16, minlength=16)
    for order in ORDERS:
        ran = launch(
            cuda(text), inputs={"x": values}, outputs={"out": np.zeros(16, "i4")}, fills={"out": 0}, thread_order=order
        )
        assert ran.findings == []
        np.testing.assert_array_equal(ran.arrays["out"], expected)


def test_softmax_of_a_row_that_a_cluster_shares(cuda):
    body = """float v = x[blockIdx.x * 32 + threadIdx.x], m = v;
for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
if (threadIdx.x == 0) s[0] = m;
c.sync();
for (int r = 0; r < 4; r++) m = fmaxf(m, *c.map_shared_rank(s, r));
float e = expf(v - m), sum = e;
for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
if (threadIdx.x < 4) c.map_shared_rank(s, threadIdx.x)[1 + c.block_rank()] = sum;
c.sync();
out[blockIdx.x * 32 + threadIdx.x] = e / (s[1] + s[2] + s[3] + s[4]);
"""
    values = np.random.default_rng(2).normal(size=256).astype("f4")
    rows = np.exp(values.reshape(2, 128).astype("f8"))
    expected = (rows / rows.sum(1, keepdims=True)).ravel()
    for order in ORDERS:
        ran = launch(cuda(source(body)), inputs={"x": values}, thread_order=order)
        assert ran.findings == []
        np.testing.assert_allclose(ran.arrays["out"], expected, rtol=1e-5)


PTX_PUSH = """unsigned here = (unsigned)__cvta_generic_to_shared(s + threadIdx.x), there;
asm volatile("barrier.cluster.arrive.relaxed.aligned;");
asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"((c.block_rank() + 1) % 4));
asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(there), "f"(x[blockIdx.x * 32 + threadIdx.x]) : "memory");
asm volatile("barrier.cluster.arrive.release;\\nbarrier.cluster.wait;" ::: "memory");
out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
"""


def test_inline_ptx_pushes_into_the_next_block(cuda):
    check_output(cuda(source(PTX_PUSH)), np.roll(np.arange(256).reshape(2, 4, 32), 1, axis=1).ravel())


def test_inline_ptx_reads_and_updates_through_the_shared_window(cuda):
    body = """s[threadIdx.x] = c.block_rank() + 1;
unsigned here = (unsigned)__cvta_generic_to_shared(s + threadIdx.x), there;
c.sync();
asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(0));
asm volatile("red.shared::cluster.add.f32 [%0], %1;" :: "r"(there), "f"(10.0f) : "memory");
c.sync();
float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
out[blockIdx.x * 32 + threadIdx.x] = v;
c.sync();
"""
    check_output(cuda(source(body)), np.full(256, 41))


def test_an_address_tells_whose_it_is_and_survives_conversion(cuda):
    body = """float* p = c.map_shared_rank(s, 2);
unsigned there = (unsigned)__cvta_generic_to_shared(p), rank;
asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank) : "r"(there));
float* back = (float*)__cvta_shared_to_generic(there);
out[blockIdx.x * 32 + threadIdx.x] = rank * 1000 + c.query_shared_rank(p) * 100 + (back == p) * 10
    + c.query_shared_rank(s) + (__isShared(s) ? 0.5f : 0);
"""
    ranks = np.tile(np.arange(4).repeat(32), 2)
    check_output(cuda(source(body)), 2210.5 + ranks)


def test_a_generic_address_of_shared_memory_is_each_blocks_own(cuda):
    body = """s[threadIdx.x] = c.block_rank();
c.sync();
float* p = x[0] == 1 ? out : s;
float remote = c.map_shared_rank(p, 3)[threadIdx.x];
out[blockIdx.x * 32 + threadIdx.x] = p[threadIdx.x] + 10 * remote;
c.sync();
"""
    check_output(cuda(source(body)), 30 + np.tile(np.arange(4).repeat(32), 2))


@pytest.mark.parametrize(("attributes", "expected"), [({}, 0), ({"cluster": 1}, 1), ({"cluster": 4}, 1)])
def test_a_kernel_can_tell_whether_it_was_launched_with_clusters(cuda, attributes, expected):
    body = """unsigned e;
asm("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(e));
out[blockIdx.x * 32 + threadIdx.x] = e + 0 * (s[threadIdx.x] = 0);
"""
    check_output(cuda(source(body, dims="")), np.full(256, expected), attributes=attributes)


def test_mapped_addresses_may_have_64_bits(cuda):
    body = PTX_PUSH.replace("unsigned here = (unsigned)", "unsigned long long here = ")
    body = body.replace("cluster.u32 %0, %1", "cluster.u64 %0, %1").replace(
        '"=r"(there) : "r"(here)', '"=l"(there) : "l"(here)'
    )
    body = body.replace('"r"(there), "f"', '"l"(there), "f"')
    check_output(cuda(source(body)), np.roll(np.arange(256).reshape(2, 4, 32), 1, axis=1).ravel())


def test_clusters_in_two_dimensions(cuda):
    body = """s[0] = blockIdx.x * 10 + blockIdx.y;
dim3 b = c.block_index(), n = c.dim_blocks();
unsigned cx, cy, nx, ny;
asm("mov.u32 %0, %clusterid.x;" : "=r"(cx)); asm("mov.u32 %0, %clusterid.y;" : "=r"(cy));
asm("mov.u32 %0, %nclusterid.x;" : "=r"(nx)); asm("mov.u32 %0, %nclusterid.y;" : "=r"(ny));
c.sync();
float corner = *c.map_shared_rank(s, n.x * n.y - 1);
bool fits = cx * n.x + b.x == blockIdx.x && cy * n.y + b.y == blockIdx.y && b.y * n.x + b.x == c.block_rank()
    && nx == 2 && ny == 2;
out[blockIdx.y * 4 + blockIdx.x] = corner * (fits ? 1 : -1);
c.sync();
"""
    body = body.replace("%clusterid", "%%clusterid").replace("%nclusterid", "%%nclusterid")
    expected = [[(x // 2 * 2 + 1) * 10 + y // 2 * 2 + 1 for x in range(4)] for y in range(4)]
    check_output(
        cuda(source(body, dims="2, 2, 1")),
        np.ravel(expected),
        grid=(4, 4),
        block=1,
        outputs={"out": np.zeros(16, "f4")},
    )


def test_the_attribute_of_the_launch_makes_clusters(cuda):
    check_output(cuda(source(SUM + "c.sync();", dims="")), SUMS, attributes={"cluster": 4})


def test_without_clusters_each_block_is_one(cuda):
    check_output(cuda(source(SUM + "c.sync();", dims="")), np.arange(256))


def test_sixteen_blocks_must_be_asked_for(cuda):
    executor = cuda(source(SUM + "c.sync();", dims="16, 1, 1"))
    options = {"grid": 16, "inputs": {"x": np.ones(512, "f4")}, "outputs": {"out": np.zeros(512, "f4")}}
    check_output(executor, np.full(512, 16), attributes={"cluster": 16}, **options)
    check_finding(executor, "invalid-launch", "more than 8 are not portable", "cluster=16", **options)


@pytest.mark.parametrize(
    ("dims", "attributes", "grid", "message"),
    [
        ("4, 1, 1", {}, 6, "a grid of (6, 1, 1) blocks, which clusters of (4, 1, 1) blocks do not divide"),
        ("", {"cluster": 4}, 6, "do not divide"),
        ("2, 2, 1", {}, (2, 3), "do not divide"),
        ("4, 1, 1", {"cluster": 2}, 8, "__cluster_dims__ says (4, 1, 1)"),
        ("", {"cluster": 17}, 17, "the limit is 16"),
    ],
)
def test_a_launch_that_a_gpu_refuses_is_found(cuda, dims, attributes, grid, message):
    executor = cuda(source(SUM + "c.sync();", dims=dims))
    check_finding(executor, "invalid-launch", message, attributes=attributes, grid=grid)


def test_a_remote_access_past_the_end_names_the_block(cuda):
    body = "c.sync(); c.map_shared_rank(s, 2)[threadIdx.x + 1] = 1; c.sync(); out[0] = s[0];"
    found = check_finding(
        cuda(source(body)), "out-of-bounds-write", "right after the end of the shared memory of block 2", grid=4, line=5
    )
    assert found["thread"] == (31, 0, 0)


def test_a_remote_access_before_the_start_is_found_through_the_shared_window(cuda):
    body = PTX_PUSH.replace("(s + threadIdx.x)", "(s + threadIdx.x) - 8")
    check_finding(cuda(source(body)), "out-of-bounds-write", "8 bytes before the start of the shared memory of block 1")


def test_a_rank_that_the_cluster_does_not_have_is_found(cuda):
    body = "c.sync(); c.map_shared_rank(s, c.num_blocks())[threadIdx.x] = 1; c.sync(); out[0] = s[0];"
    check_finding(cuda(source(body)), "out-of-bounds-write", "a block that the cluster does not have")


def test_shared_without_cluster_does_not_reach_another_block(cuda):
    body = PTX_PUSH.replace("st.shared::cluster", "st.shared")
    check_finding(cuda(source(body)), "out-of-bounds-write", "needs .shared::cluster")


def test_a_deadlock_at_the_barrier_of_the_cluster_names_its_line(cuda):
    body = """s[0] = 1;
if (threadIdx.x < 16)
__cluster_barrier_arrive(), __cluster_barrier_wait();
else
__syncthreads();
out[0] = s[0];"""
    found = check_finding(cuda(source(body)), "barrier-deadlock", "of 128 threads of 4 blocks", grid=4, line=7)
    assert "64 are at a barrier, 64 at the barrier of the cluster" in found["message"]


def test_a_block_that_has_exited_is_not_waited_for(cuda):
    body = "if (c.block_rank() == 1) return;\nc.sync(); c.sync();\nout[blockIdx.x * 32 + threadIdx.x] = 1;"
    expected = np.where(np.arange(256) // 32 % 4 == 1, -1, 1)
    check_output(cuda(source(body)), expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("__cluster_barrier_arrive(); __cluster_barrier_arrive();", "arrives at the barrier of the cluster again"),
        ('asm volatile("barrier.cluster.wait;");', "without having arrived"),
    ],
)
def test_arrivals_and_waits_must_alternate(cuda, body, message):
    check_finding(cuda(source(body + " out[0] = x[0];")), "cluster-barrier", message, line=5)


def test_work_between_arrival_and_wait_needs_no_other_block(cuda):
    body = """s[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
c.barrier_arrive();
float own = s[threadIdx.x]; __syncthreads();
c.barrier_wait();
out[blockIdx.x * 32 + threadIdx.x] = own - c.map_shared_rank(s, 0)[threadIdx.x];
c.sync();
"""
    check_output(cuda(source(body)), np.tile(np.arange(4).repeat(32) * 32, 2))


def test_a_block_may_spin_on_another_of_its_cluster(cuda):
    body = """if (threadIdx.x == 0) s[0] = 0;
c.sync();
volatile float* flag = c.map_shared_rank(s, 0);
if (c.block_rank() == 3) *flag = 7; else while (*flag != 7) {}
out[blockIdx.x * 32 + threadIdx.x] = *flag;
c.sync();
"""
    check_output(cuda(source(body)), np.full(256, 7), watched=())


def test_clusters_may_wait_for_each_other(cuda):
    body = """s[0] = 1;
c.sync();
if (threadIdx.x == 0) {
    atomicAdd(count, (int)*c.map_shared_rank(s, 1 - c.block_rank()));
    while (*(volatile int*)count < gridDim.x) {}
}
c.sync();
out[blockIdx.x * 32 + threadIdx.x] = *count;
"""
    text = source(body, dims="2, 1, 1", parameters="const float* x, float* out, int* count")
    check_output(cuda(text), np.full(256, 8), watched=(), scratch={"count": np.zeros(1, "i4")}, fills={"count": 0})


def test_dynamic_shared_memory_is_shared_too(cuda):
    text = source(SUM + "c.sync();", shared="__shared__ float other[3]; extern __shared__ float s[];")
    check_output(cuda(text), SUMS, shared_bytes=128)
    beyond = cuda(text.replace("[threadIdx.x];\nout", "[threadIdx.x + 1];\nout"))
    check_finding(beyond, "out-of-bounds-read", "the end of the shared memory of block 0", shared_bytes=128)


def test_a_sample_takes_whole_clusters(cuda):
    executor = cuda(source(SUM + "c.sync();"))
    values = {"inputs": {"x": np.ones(3200, "f4")}, "outputs": {"out": np.zeros(3200, "f4")}}
    ran = launch(executor, grid=100, sample_blocks={"n": 10, "seed": 1}, **values)
    assert ran.findings == []
    assert ran.answer["report"]["n_blocks_run"] == [12]
    clusters = ran.written["out"].reshape(25, -1)
    assert (clusters.min(1) == clusters.max(1)).all()
    assert (clusters.max(1) != 0).sum() == 3


def test_remote_traffic_is_not_global(cuda):
    counters = launch(cuda(source(SUM + "c.sync();"))).counters
    assert counters["global_load_bytes"] == 256 * 4
    assert counters["shared_load_bytes"] == 256 * 4 * 4
    assert counters["n_barriers"] == 256 * 2
    assert counters["n_global_requests"] == 4 * 2
    assert counters["n_global_sectors"] == 4 * 2 * 4


def test_remote_atomics_do_not_keep_blocks_from_being_sampled(cuda):
    text = source("s[0] = 0; c.sync(); atomicAdd(c.map_shared_rank(s, 0), 1.0f); c.sync(); out[0] = s[0];")
    assert not cuda(text).loaded["kernels"][0]["uses_global_atomics"]
    assert cuda(text.replace("out[0] = s[0]", "atomicAdd(out, s[0])")).loaded["kernels"][0]["uses_global_atomics"]


def test_a_store_that_tells_no_barrier_object_is_found(cuda):
    body = """s[threadIdx.x] = 1;
asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
    :: "r"((unsigned)__cvta_generic_to_shared(s)), "r"(1), "r"((unsigned)__cvta_generic_to_shared(s + 8)));
out[0] = s[0];"""
    first = launch(cuda(source(body))).findings[0]
    assert (first["code"], first["line"]) == ("barrier-object", 7)


SEND = """const unsigned bar = (unsigned)__cvta_generic_to_shared(&done), slot = (unsigned)__cvta_generic_to_shared(s);
if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], EXPECTED;" :: "r"(bar) : "memory");
}
c.sync();
const unsigned to = (c.block_rank() + 1) % c.num_blocks();
unsigned there, its_bar, over = 0;
asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(slot + 4 * threadIdx.x), "r"(to));
asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its_bar) : "r"(bar), "r"(to));
asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
             :: "r"(there), "r"(__float_as_uint(x[blockIdx.x * 32 + threadIdx.x])), "r"(its_bar) : "memory");
while (!over) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;"
                 " selp.u32 %0, 1, 0, p; }" : "=r"(over) : "r"(bar) : "memory");
}
out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];"""
"""Each block of a cluster sends its row to the next, and waits for the bytes that it is sent."""


def sending(n_bytes):
    return source(
        SEND.replace("EXPECTED", str(n_bytes)), shared="__shared__ float s[32]; __shared__ unsigned long long done;"
    )


def test_a_store_to_another_block_tells_its_barrier_object(cuda):
    rows = np.arange(256, dtype="f4").reshape(2, 4, 32)
    check_output(cuda(sending(128)), np.roll(rows, 1, axis=1).reshape(-1))


def test_bytes_that_are_never_sent_are_waited_for_in_vain(cuda):
    ran = launch(cuda(sending(132)), max_instructions=10**6)
    assert ran.answer.get("timed_out") or [finding["code"] for finding in ran.findings] == ["endless-wait"]
