"""`mbarrier` objects and bulk copies, from libcu++ and by hand, do what the PTX ISA says, in every order of threads."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_lsp.ptx.executor_process import Session
from tests.ptx.harness import Executor

SOURCE = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;
#pragma nv_diag_suppress static_var_with_dynamic_init
extern "C" __global__ void by_barrier(const float* x, float* y, int n) {
    __shared__ alignas(128) float s[2][128];
    __shared__ barrier bar;
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(&s[0][threadIdx.x], x + threadIdx.x, sizeof(float), bar);
    bar.arrive_and_wait();
    y[threadIdx.x] = s[0][127 - threadIdx.x];
    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(s[1], x + 128, cuda::aligned_size_t<16>(512), bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, 512);
    } else token = bar.arrive();
    bar.wait(std::move(token));
    y[128 + threadIdx.x] = s[1][127 - threadIdx.x];
}
extern "C" __global__ void by_pipeline(const float* x, float* y, int n) {
    __shared__ alignas(128) float s[2][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    pipe.producer_acquire();
    cuda::memcpy_async(block, s[0], x, 512, pipe);
    pipe.producer_commit();
    for (int i = 1; i <= n; i++) {
        if (i < n) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[i % 2], x + 128 * i, 512, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        y[(i - 1) * 128 + threadIdx.x] = s[(i - 1) % 2][127 - threadIdx.x];
        pipe.consumer_release();
    }
}
"""
HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"
KERNEL = """
.visible .entry {name}(.param .u64 X, .param .u64 Y, .param .u32 N) {{
.reg .pred %p<3>;
.reg .b32 %t, %n, %i, %bar, %s, %mine, %parity, %v, %c;
.reg .b64 %x, %y, %o, %state;
.shared .align 16 .b8 s_{name}[512];
.shared .align 8 .b64 bar_{name}[2];
mov.u32 %t, %tid.x;
mov.u32 %bar, bar_{name};
mov.u32 %s, s_{name};
ld.param.u64 %x, [X];
ld.param.u64 %y, [Y];
ld.param.u32 %n, [N];
mad.lo.u32 %mine, %t, 4, %s;
mul.wide.u32 %o, %t, 4;
add.u64 %y, %y, %o;
setp.ne.u32 %p0, %t, 0;
{body}
ret;
}}"""
SET_UP = "@!%p0 mbarrier.init.shared::cta.b64 [%bar], 1;\n@!%p0 fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%x], %c, [%bar];"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;"
WAIT = "{name}_wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar], %parity;\n@!%p1 bra {name}_wait;\n"
EXPECT_HALF = EXPECT.replace("512", "256")
STORE = "st.shared.b32 [%mine], %t;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
TO_TENSOR = "cp.async.bulk.global.shared::cta.bulk_group [%y], [%s], 512;\n"
COMMIT = "cp.async.bulk.commit_group;\n"
BODIES = {
    # A loop over stages, each a phase: one thread asks for the bytes, all wait for them.
    "stages": SET_UP
    + "mov.u32 %parity, 0;\nmov.u32 %i, 0;\nmov.u32 %c, 512;\nagain:\n"
    + f"@%p0 bra asked;\n{EXPECT}\n{COPY}\nasked:\n{WAIT.format(name='stages')}"
    + "ld.shared.b32 %v, [%mine];\nst.global.b32 [%y], %v;\nbar.sync 0;\n"
    + "add.u64 %x, %x, 512;\nadd.u64 %y, %y, 512;\nxor.b32 %parity, %parity, 1;\n"
    + "add.u32 %i, %i, 1;\nsetp.lt.u32 %p2, %i, %n;\n@%p2 bra again;",
    # From shared memory to a tensor.
    "stores": f"{STORE}@%p0 bra stored;\n{TO_TENSOR}{COMMIT}cp.async.bulk.wait_group 0;\nstored:",
    # Arrivals with counts and with their states; the second phase has one arrival less.
    "states": "@!%p0 mbarrier.init.shared::cta.b64 [%bar], 256;\nbar.sync 0;\n@%p0 bra one;\n"
    + "mbarrier.arrive_drop.shared::cta.b64 %state, [%bar];\nmbarrier.arrive.shared::cta.b64 _, [%bar];\n"
    + "bra.uni both;\none:\nmbarrier.arrive.shared::cta.b64 %state, [%bar], 2;\nboth:\nst.shared.b32 [%mine], %t;\n"
    + "first:\nmbarrier.test_wait.shared::cta.b64 %p1, [%bar], %state;\n@!%p1 bra first;\n"
    + "mbarrier.pending_count.b64 %v, %state;\nmbarrier.arrive.shared::cta.b64 %state, [%bar];\n"
    + "@!%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 16;\n"
    + "@!%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 16;\n"
    + "mbarrier.pending_count.b64 %v, %state;\nst.global.b32 [%y], %v;",
    # Other threads read what one has asked for.
    "no_wait": SET_UP
    + f"mov.u32 %c, 512;\n@%p0 bra asked_once;\n{EXPECT}\n{COPY}\nasked_once:\n"
    + "ld.shared.b32 %v, [%mine];\nst.global.b32 [%y], %v;",
    # One look, whose answer nobody asks for.
    "one_look": SET_UP
    + f"mov.u32 %c, 512;\nmov.u32 %parity, 0;\n@%p0 bra asked_to_look;\n{EXPECT}\n{COPY}\nasked_to_look:\n"
    + "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar], %parity;\n"
    + "ld.shared.b32 %v, [%mine];\nst.global.b32 [%y], %v;",
    "one_look_at_threads": "@!%p0 mbarrier.init.shared::cta.b64 [%bar], 128;\nst.shared.b32 [%mine], %t;\n"
    + "bar.sync 0;\nmul.lo.u32 %v, %t, 3;\nst.shared.b32 [%mine], %v;\n"
    + "mbarrier.arrive.shared::cta.b64 %state, [%bar];\nmbarrier.test_wait.shared::cta.b64 %p1, [%bar], %state;\n"
    + "xor.b32 %c, %t, 127;\nmad.lo.u32 %mine, %c, 4, %s;\nld.shared.b32 %v, [%mine];\nst.global.b32 [%y], %v;",
    # Two stages, of which the second is read when the first has come.
    "other_stage": SET_UP
    + "mov.u32 %c, 256;\nmov.u32 %parity, 0;\nadd.u32 %i, %bar, 8;\nadd.u32 %n, %s, 256;\n"
    + f"@!%p0 mbarrier.init.shared::cta.b64 [%i], 1;\nbar.sync 0;\n@%p0 bra two_asked;\n{EXPECT_HALF}\n{COPY}\n"
    + f"{EXPECT_HALF.replace('%bar', '%i')}\n{COPY.replace('%bar', '%i').replace('%s', '%n')}\ntwo_asked:\n"
    + WAIT.format(name="other_stage")
    + "ld.shared.b32 %v, [%mine];\nst.global.b32 [%y], %v;",
    "left": f"{STORE}@%p0 bra left_end;\n{TO_TENSOR}{COMMIT}left_end:",
    "not_committed": f"{STORE}@%p0 bra free_end;\n{TO_TENSOR}cp.async.bulk.wait_group.read 0;\nfree_end:",
    "one_left": f"{STORE}@%p0 bra one_end;\n{(TO_TENSOR + COMMIT) * 2}cp.async.bulk.wait_group.read 1;\none_end:",
    "reused": f"{STORE}@!%p0 {TO_TENSOR}@!%p0 {COMMIT}bar.sync 0;\nst.shared.b32 [%mine], %n;\nbar.sync 0;\n"
    + "@!%p0 cp.async.bulk.wait_group.read 0;",
    "reused_later": f"{STORE}@!%p0 {TO_TENSOR}@!%p0 {COMMIT}@!%p0 cp.async.bulk.wait_group.read 0;\nbar.sync 0;\n"
    + "st.shared.b32 [%mine], %n;",
    "missing": EXPECT,
    "nobody": "mbarrier.init.shared::cta.b64 [%bar], 0;",
    "crowd": SET_UP + "mbarrier.arrive.shared::cta.b64 _, [%bar], 2;",
    "odd_size": SET_UP + f"mov.u32 %c, 24;\n@!%p0 {COPY}",
    "odd_place": SET_UP + f"mov.u32 %c, 32;\nadd.u64 %x, %x, 4;\n@!%p0 {COPY}",
    "past_the_end": SET_UP + f"mov.u32 %c, 1024;\n@!%p0 {COPY}",
    "too_few_bytes": SET_UP
    + f"mov.u32 %parity, 0;\nmov.u32 %c, 256;\n@%p0 bra few;\n{EXPECT}\n{COPY}\nfew:\n"
    + WAIT.format(name="too_few_bytes"),
}
ORDERS = ["forward", "reverse", "random"]
X = np.random.default_rng(3).standard_normal(4 * 128).astype("f4")


@pytest.fixture(scope="module")
def cplusplus(session, compile_cuda, tmp_path_factory) -> Executor:
    built = compile_cuda(SOURCE)
    return Executor(Session(session.compiler), built.ptx, tmp_path_factory.mktemp("barriers"), built.symbols)


@pytest.fixture(scope="module")
def by_hand(session, tmp_path_factory) -> Executor:
    text = HEAD + "\n".join(KERNEL.format(name=name, body=body) for name, body in BODIES.items())
    return Executor(Session(session.compiler), text, tmp_path_factory.mktemp("objects"), {})


def run(executor, kernel, dtype="f4", *, watches_races=True, **options):
    return executor.run(
        kernel,
        block=128,
        inputs={"x": X},
        outputs={"y": np.zeros(4 * 128, dtype)},
        arguments=("x", "y", 4),
        fills={"y": 0},
        watches_races=watches_races,
        **options,
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_waits_for_copies_and_for_bytes(cplusplus, order):
    ran = run(cplusplus, "by_barrier", thread_order=order)
    assert ran.findings == []
    assert (ran.arrays["y"][:256].reshape(2, 128) == X[:256].reshape(2, 128)[:, ::-1]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_pipeline_of_a_block_hands_stages_over(cplusplus, order):
    ran = run(cplusplus, "by_pipeline", thread_order=order)
    assert ran.findings == []
    assert (ran.arrays["y"].reshape(4, 128) == X.reshape(4, 128)[:, ::-1]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_phases_follow_each_other(by_hand, order):
    ran = run(by_hand, "stages", thread_order=order)
    assert ran.findings == []
    assert (ran.arrays["y"] == X).all()


def test_shared_memory_is_copied_to_a_tensor(by_hand):
    ran = run(by_hand, "stores", "i4")
    assert ran.findings == []
    assert (ran.arrays["y"][:128] == np.arange(128)).all()


def test_a_copy_to_a_tensor_reads_until_it_is_waited_for(by_hand):
    assert (run(by_hand, "reused", "i4", watches_races=False).arrays["y"][:128] == 4).all()
    assert run(by_hand, "reused", "i4").finding()["code"] == "copy-in-flight"
    assert (run(by_hand, "reused_later", "i4").arrays["y"][:128] == np.arange(128)).all()


@pytest.mark.parametrize("kernel", ["left", "not_committed", "one_left"])
def test_a_thread_may_not_end_while_shared_memory_is_read(by_hand, kernel):
    finding = run(by_hand, kernel, "i4").finding()
    assert (finding["code"], finding["severity"]) == ("copy-in-flight", "error")
    assert "ends while its copy of 512 bytes" in finding["message"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", ["one_look", "other_stage"])
def test_an_answer_that_nobody_looks_at_is_no_wait_for_a_copy(by_hand, kernel, order):
    ran = by_hand.run(
        kernel,
        block=128,
        inputs={"x": X},
        outputs={"y": np.zeros(512, "f4")},
        arguments=("x", "y", 4),
        thread_order=order,
    )
    assert [finding["code"] for finding in ran.findings] == ["copy-in-flight"]


@pytest.mark.parametrize("order", ORDERS)
def test_an_answer_that_nobody_looks_at_is_no_wait_for_threads(by_hand, order):
    found = run(by_hand, "one_look_at_threads", thread_order=order).findings
    assert [finding["code"] for finding in found] == ["race"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_thread_that_drops_out_is_not_waited_for_again(by_hand, order):
    ran = run(by_hand, "states", "i4", thread_order=order)
    assert ran.findings == []
    # Of the 255 arrivals of the second phase, each of the 128 threads sees what was left before its own.
    assert sorted(ran.arrays["y"][:128]) == list(range(128, 256))


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_that_nobody_waits_for_is_found(by_hand, order):
    errors = [
        finding for finding in run(by_hand, "no_wait", thread_order=order).findings if finding["severity"] == "error"
    ]
    assert [finding["code"] for finding in errors] == ["copy-in-flight" if order == "forward" else "race"]


@pytest.mark.parametrize(
    ("kernel", "code", "words"),
    [
        ("missing", "barrier-object", "none is initialised"),
        ("nobody", "barrier-object", "for 0 arrivals"),
        ("crowd", "barrier-object", "more often"),
        ("odd_size", "misaligned-access", "copies 24 bytes"),
        ("odd_place", "misaligned-access", "not a multiple of 16"),
        ("past_the_end", "out-of-bounds-write", "the end of the shared variable"),
        ("too_few_bytes", "endless-wait", "waits forever"),
    ],
)
def test_what_a_barrier_object_may_not_be_used_for_is_found(by_hand, kernel, code, words):
    errors = [finding for finding in run(by_hand, kernel).findings if finding["severity"] == "error"]
    assert [finding["code"] for finding in errors] == [code]
    assert words in errors[0]["message"]


@pytest.mark.parametrize(
    "instruction",
    [
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%p0], [%a0], 16;",
        "cp.async.bulk.prefetch.L2.global [%p0], 16;",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%a0], [%a1], 16, [%a2];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%a0], [%p0], 16, [%a2], %h0;",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%a0], [%p0, {%a1}], [%a2];",
    ],
)
def test_other_bulk_copies_are_unsupported_with_their_text(ptx, instruction):
    loaded = ptx(
        f"{HEAD}.visible .entry k() {{ .reg .b16 %h0; .reg .b32 %a<4>; .reg .b64 %p<2>; {instruction} ret; }}"
    ).loaded
    assert instruction.split(" ")[0] in (loaded["unsupported"]["instruction"] or loaded["unsupported"]["message"])
