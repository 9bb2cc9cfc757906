"""Every finding both ways: a kernel that does it, and one as near to it as possible that does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.harness import launch_step

ONES = np.ones(64, "f4")


def launch(executor, kernel="k", **options):
    options.setdefault("inputs", {"x": ONES})
    options.setdefault("outputs", {"out": np.zeros(64, "f4")})
    return executor.run(kernel, block=options.pop("block", 64), **options)


def check_clean(executor, **options):
    assert launch(executor, **options).findings == []


def check_finding(executor, code, message, *, line=None, severity="error", **options):
    """One finding with this code, whose message holds this text. Returns it."""
    found = launch(executor, **options).finding()
    assert (found["code"], found["severity"]) == (code, severity), found
    assert message in found["message"]
    if line is not None:
        assert found["line"] == line
    return found


def kernel(body, parameters="const float* x, float* out"):
    """A kernel whose body is on line 3."""
    return f'// a comment\nextern "C" __global__ void k({parameters}) {{\n{body}\n}}\n'


def test_a_read_past_the_end_names_tensor_distance_line_block_and_thread(cuda):
    executor = cuda(kernel("int i = blockIdx.x * 16 + threadIdx.x; out[i] = x[i + 8];"))
    found = check_finding(
        executor, "out-of-bounds-read", "reads 4 bytes, right after the end of x (f32[64])", line=3, grid=4, block=16
    )
    assert (found["kernel"], found["block"], found["thread"]) == ("k", (3, 0, 0), (8, 0, 0))
    assert found["file"] == "kernel.cu"
    check_clean(cuda(kernel("int i = blockIdx.x * 16 + threadIdx.x; out[i] = x[i];")), grid=4, block=16)


def test_a_read_far_past_the_end_says_how_far(cuda):
    check_finding(
        cuda(kernel("out[threadIdx.x] = x[threadIdx.x + 100];")), "out-of-bounds-read", "144 bytes past the end of x"
    )


def test_a_read_before_the_start(cuda):
    check_finding(
        cuda(kernel("out[threadIdx.x] = x[(int)threadIdx.x - 2];")),
        "out-of-bounds-read",
        "8 bytes before the start of x",
    )


def test_a_wide_read_across_the_end(cuda):
    executor = cuda(kernel("float4 v = ((const float4*)x)[threadIdx.x]; out[threadIdx.x] = v.x + v.w;"))
    check_finding(
        executor,
        "out-of-bounds-read",
        "reads 16 bytes, across the end of x (f32[62])",
        block=16,
        inputs={"x": ONES[:62]},
    )
    check_clean(executor, block=15, inputs={"x": ONES[:62]})


def test_a_write_past_the_end(cuda):
    executor = cuda(kernel("out[threadIdx.x + 1] = x[threadIdx.x];"))
    check_finding(executor, "out-of-bounds-write", "writes 4 bytes, right after the end of out")
    check_clean(executor, block=63)


def test_the_same_error_in_many_blocks_is_one_finding(cuda):
    executor = cuda(kernel("out[threadIdx.x] = x[64 + blockIdx.x];"))
    assert check_finding(executor, "out-of-bounds-read", "x", grid=10)["n_occurrences"] == 10


def test_a_write_to_an_input(cuda):
    executor = cuda(kernel("((float*)x)[threadIdx.x] = 0;"))
    check_finding(executor, "write-to-input", "writes 4 bytes at byte 0 of x (f32[64]), which is an input")
    assert (launch(executor).arrays["x"] == ONES).all()


def test_an_atomic_on_an_input(cuda):
    check_finding(cuda(kernel("atomicAdd((float*)x, 1.f);")), "write-to-input", "updates 4 bytes")


def test_a_null_pointer(cuda):
    executor = cuda(kernel("float* p = (float*)(size_t)(x[0] - 1); p[threadIdx.x] = 1;"))
    check_finding(executor, "null-pointer", "the pointer is null")


def test_a_pointer_from_nowhere(cuda):
    executor = cuda(kernel("out[0] = *(const float*)(0x7ff012345600 + (size_t)x * 0);"))
    check_finding(executor, "out-of-bounds-read", "belongs to no tensor")


@pytest.mark.parametrize("shift", [1, 2])
def test_a_misaligned_access(cuda, shift):
    executor = cuda(kernel(f"out[threadIdx.x] = *(const float*)((const char*)x + {shift} + 4 * threadIdx.x);"))
    check_finding(executor, "misaligned-access", f"reads 4 bytes at byte {shift} of x", block=8)


def test_a_vector_load_of_a_tensor_that_starts_off_alignment(cuda):
    executor = cuda(kernel("out[threadIdx.x] = ((const float2*)x)[threadIdx.x].y + ((const float2*)x)[threadIdx.x].x;"))
    steps = [step_of(executor, block=16)]
    buffers = {"inputs": {"x": ONES}, "outputs": {"out": np.zeros(64, "f4")}}
    assert executor.run_steps(steps, **buffers).findings == []
    assert executor.run_steps(steps, **buffers, offsets={"x": 4}).finding()["code"] == "misaligned-access"


def step_of(executor, block):
    return launch_step(executor, "k", 1, block, 0, ("x", "out"))


def test_reading_an_output_that_nothing_wrote(cuda):
    executor = cuda(kernel("out[threadIdx.x] += x[threadIdx.x];"))
    check_finding(
        executor, "uninitialized-read", "reads 4 bytes at byte 0 of out (f32[64]), which nothing has written", line=3
    )
    check_clean(executor, fills={"out": 0})


def test_reading_an_output_after_writing_it(cuda):
    check_clean(cuda(kernel("out[threadIdx.x] = 1; __syncthreads(); out[threadIdx.x ^ 1] += x[threadIdx.x];")))


def test_an_atomic_on_scratch_that_nothing_filled(cuda):
    executor = cuda(kernel("atomicAdd(out, 1.f);"))
    check_finding(executor, "uninitialized-read", "updates 4 bytes at byte 0 of out")
    check_clean(executor, fills={"out": 0})


def test_what_one_launch_wrote_the_next_may_read(cuda):
    text = (
        kernel("out[threadIdx.x] = x[threadIdx.x];")
        + 'extern "C" __global__ void twice(float* out) { out[threadIdx.x] *= 2; }'
    )
    executor = cuda(text)
    first = launch_step(executor, "k", 1, 60, 0, ("x", "out"))
    second = launch_step(executor, "twice", 1, 64, 0, ("out",))
    buffers = {"inputs": {"x": ONES}, "outputs": {"out": np.zeros(64, "f4")}}
    assert (
        executor.run_steps([first, second], **buffers)
        .finding()["message"]
        .startswith("reads 4 bytes at byte 240 of out")
    )
    whole = launch_step(executor, "k", 1, 64, 0, ("x", "out"))
    ran = executor.run_steps([whole, second], **buffers)
    assert ran.findings == []
    assert (ran.arrays["out"] == 2).all()


def test_shared_memory_past_its_end(cuda):
    executor = cuda(
        kernel(
            "__shared__ float s[64]; s[threadIdx.x + (int)x[0] - 1] = 1; __syncthreads(); "
            "out[threadIdx.x] = s[threadIdx.x];"
        )
    )
    check_clean(executor)
    check_finding(executor, "out-of-bounds-write", "right after the end of shared memory", inputs={"x": ONES * 2})


NEIGHBOURS = kernel("""__shared__ float first[32]; __shared__ float second[32]; extern __shared__ float third[];
float* p = x[0] > 0 ? first : second; int t = threadIdx.x; first[t] = 1; second[t] = 2; third[t] = 3; __syncthreads();
CODE
out[t] = first[t] + second[t] + third[t];""")


@pytest.mark.parametrize(
    ("code", "finding", "message"),
    [
        ("if (t == 31) first[t + 1] = 4;", "out-of-bounds-write", "right after the end of the shared variable first"),
        ("second[t] += first[t + 8];", "out-of-bounds-read", "the end of the shared variable first"),
        ("if (t == 31) p[t + 1] = 4;", "out-of-bounds-write", "right after the end of the shared variable"),
        ("if (t == 0) third[t - 1] = 4;", "out-of-bounds-write", "past the end of the shared variable second"),
    ],
)
def test_shared_memory_past_a_variable_is_not_that_of_the_next(cuda, code, finding, message):
    executor = cuda(NEIGHBOURS.replace("CODE", code))
    check_finding(executor, finding, message, line=5, block=32, shared_bytes=128, watches_races=True)


def test_a_read_past_a_shared_variable_is_found_without_the_check_for_races(cuda):
    executor = cuda(NEIGHBOURS.replace("CODE", "second[t] += first[t + 8];"))
    check_finding(executor, "out-of-bounds-read", "shared variable first", line=5, block=32, shared_bytes=128)


def test_shared_memory_is_as_aligned_as_its_variables(cuda):
    code = (
        "__shared__ alignas(4096) float s[64]; s[threadIdx.x] = x[0];"
        "out[threadIdx.x] = (unsigned)__cvta_generic_to_shared(s);"
    )
    assert set(launch(cuda(kernel(code))).arrays["out"]) == {4096}


DYNAMIC = "extern __shared__ float s[]; "


@pytest.mark.parametrize("start", [0, 1024, 7 * 1024])
def test_shared_memory_begins_where_the_run_says_and_faults_are_named_from_there(cuda, start):
    asked = {"block": 32, "shared_bytes": 128, **({} if start == 1024 else {"shared_start": start})}
    ran = launch(cuda(kernel(DYNAMIC + "out[threadIdx.x] = (unsigned)__cvta_generic_to_shared(s);")), **asked)
    assert set(ran.arrays["out"][:32]) == {start}
    past, before = "s[threadIdx.x + 1] = 1;", "float* p = x[0] == 0 ? out : s; p[(int)threadIdx.x - 1] = 1;"
    check_finding(cuda(kernel(DYNAMIC + past)), "out-of-bounds-write", "right after the end of shared memory", **asked)
    check_finding(cuda(kernel(DYNAMIC + before)), "out-of-bounds-write", "4 bytes before the start of", **asked)


def test_too_little_dynamic_shared_memory(cuda):
    executor = cuda(kernel("extern __shared__ float s[]; s[threadIdx.x] = x[0]; out[threadIdx.x] = s[threadIdx.x];"))
    check_clean(executor, shared_bytes=256)
    check_finding(executor, "out-of-bounds-write", "right after the end of shared memory", shared_bytes=128)


def test_shared_memory_that_nothing_wrote_is_a_warning(cuda):
    executor = cuda(
        kernel(
            "__shared__ float s[64]; if (threadIdx.x < 60) s[threadIdx.x] = x[0]; __syncthreads(); "
            "out[threadIdx.x] = s[threadIdx.x];"
        )
    )
    found = check_finding(
        executor, "uninitialized-read", "4 bytes of shared memory that nothing has written", severity="warning"
    )
    assert (found["thread"], found["n_occurrences"]) == ((60, 0, 0), 4)
    check_clean(executor, block=60)


def test_shared_memory_that_nothing_wrote_is_nan(cuda):
    executor = cuda(
        kernel("__shared__ float s[64]; if (x[0] == 2) s[threadIdx.x] = x[0]; out[threadIdx.x] = s[threadIdx.x];")
    )
    assert np.isnan(launch(executor).arrays["out"]).all()


def test_a_trap(cuda):
    executor = cuda(kernel("if (x[threadIdx.x] > 1) __trap(); out[threadIdx.x] = 1;"))
    check_clean(executor)
    check_finding(executor, "trap", "trap", line=3, inputs={"x": ONES * 2})


def test_an_assertion(ptx):
    text = (
        PTX_HEAD
        + """
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.visible .entry k(.param .u64 x, .param .u64 out) {
  .reg .pred %p<2>; .reg .b32 %r<2>;
  .loc 1 12 3
  mov.u32 %r1, %tid.x;
  setp.lt.u32 %p1, %r1, 40;
  @%p1 bra $fine;
  { .param .b64 param0; .param .b64 param1; .param .b32 param2; .param .b64 param3; .param .b64 param4;
    call.uni __assertfail, (param0, param1, param2, param3, param4); }
$fine:
  ret;
}
.file 1 "kernel.cu"
"""
    )
    found = check_finding(ptx(text), "assert-failed", "assertion", line=12)
    assert found["thread"] == (40, 0, 0)
    check_clean(ptx(text), block=40)


def test_threads_that_wait_at_different_barriers_wait_forever(ptx):
    text = (
        PTX_HEAD
        + """
.visible .entry k(.param .u64 x, .param .u64 out) {
  .reg .pred %p<2>; .reg .b32 %r<2>;
  .loc 1 5 1
  mov.u32 %r1, %tid.x;
  setp.lt.u32 %p1, %r1, 32;
  @%p1 bra $first;
  .loc 1 6 1
  bar.sync 1;
  ret;
$first:
  .loc 1 8 1
  bar.sync 2;
  ret;
}
.file 1 "kernel.cu"
"""
    )
    check_finding(ptx(text), "barrier-deadlock", "of 64 threads, 64 are at a barrier and 0 have ended", line=8)
    check_clean(ptx(text), block=32)


@pytest.mark.parametrize(
    "body",
    [
        "for (int i = threadIdx.x; i < 70; i += 64) { s[threadIdx.x] += i; __syncthreads(); } __syncthreads();",
        "if (threadIdx.x < 8) { s[0] = 1; __syncthreads(); } else { s[threadIdx.x] = 2; __syncthreads(); }",
    ],
)
def test_a_warp_whose_lanes_wait_at_different_barriers_is_found(cuda, body):
    text = f"""extern "C" __global__ void k(float* out) {{
        __shared__ float s[64]; s[threadIdx.x] = 0; __syncthreads();
        {body}
        out[threadIdx.x] = s[threadIdx.x];
    }}"""
    ran = cuda(text).run("k", block=64, outputs={"out": np.zeros(64, "f4")})
    assert [finding["code"] for finding in ran.findings] == ["divergent-barrier"]


def test_warps_may_wait_at_barriers_of_their_own_and_lanes_may_have_ended(cuda):
    text = """extern "C" __global__ void k(float* out) {
        __shared__ float s[64]; if (threadIdx.x > 60) return;
        if (threadIdx.x < 32) { s[threadIdx.x] = 1; __syncthreads(); }
        else { s[threadIdx.x] = 2; out[0] = 0; __syncthreads(); }
        out[threadIdx.x] = s[60 - threadIdx.x];
    }"""
    assert cuda(text).run("k", block=64, outputs={"out": np.zeros(64, "f4")}).findings == []


def test_a_shuffle_that_waits_for_a_lane_at_a_barrier_waits_forever(cuda):
    executor = cuda(
        kernel(
            "float v = x[0];\nif (threadIdx.x < 8) v = __shfl_xor_sync(0xffffffff, v, 1); "
            "else __syncthreads();\nout[threadIdx.x] = v;"
        )
    )
    check_finding(executor, "barrier-deadlock", "8 wait for lanes of their warp", line=4, block=32)


def test_a_barrier_with_a_count(ptx):
    text = (
        PTX_HEAD
        + """
.visible .entry k(.param .u64 x, .param .u64 out) {
  .reg .pred %p<2>; .reg .b32 %r<2>;
  mov.u32 %r1, %tid.x;
  setp.lt.u32 %p1, %r1, 32;
  @%p1 bra $produce;
  bar.sync 3, COUNT;
  ret;
$produce:
  bar.arrive 3, COUNT;
  ret;
}
"""
    )
    check_clean(ptx(text.replace("COUNT", "64")))
    check_finding(ptx(text.replace("COUNT", "96")), "barrier-deadlock", "32 are at a barrier and 32 have ended")


def test_arrivals_count_until_threads_come_even_if_those_that_arrived_have_ended(cuda):
    """64 of 128 threads arrive at barrier 1 and end, while the others are still at barrier 2."""
    text = """extern "C" __global__ void k(const float* x, float* out) {
        if (threadIdx.x < 64) {
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        } else {
            for (int turn = 0; turn < 4; ++turn) asm volatile("bar.sync 2, 64;" ::: "memory");
            asm volatile("bar.sync 1, 128;" ::: "memory");
            out[threadIdx.x - 64] = x[threadIdx.x - 64];
        }
    }"""
    check_clean(cuda(text), block=128)


def test_an_infinite_loop_is_timed_out(cuda):
    executor = cuda(kernel("while (x[threadIdx.x] > 0) out[threadIdx.x] += 1;"))
    ran = launch(executor, fills={"out": 0}, max_instructions=10**7)
    assert "did not end within 10000000 instructions" in ran.answer["timed_out"]


def test_a_thread_that_waits_for_nobody_waits_forever(cuda):
    executor = cuda(kernel("while (atomicAdd(out, 0.f) == 0) {}"))
    ran = launch(executor, fills={"out": 0}, grid=3, max_instructions=10**8)
    assert ran.finding()["code"] == "endless-wait"


def test_a_block_larger_than_the_launch_bounds(cuda):
    executor = cuda(kernel("out[threadIdx.x] = x[threadIdx.x];").replace("void k", "void __launch_bounds__(32) k"))
    check_clean(executor, block=32)
    check_finding(executor, "invalid-launch", "a block of 64 threads; this kernel allows 32")


def test_too_many_findings_stop_the_run(cuda):
    lines = "\n".join(f"if (threadIdx.x == {i} && blockIdx.x == {i}) out[{i}] = x[64 + {i}];" for i in range(9))
    ran = launch(cuda(kernel(lines)), grid=20, max_findings=4)
    assert len(ran.findings) == 4
    assert len({found["line"] for found in ran.findings}) == 4


def test_a_finding_in_a_device_function_is_on_its_line(cuda):
    text = "__device__ float get(const float* p, int i) {\n  return p[i];\n}\n" + kernel(
        "out[threadIdx.x] = get(x, threadIdx.x + 1);"
    )
    check_finding(cuda(text), "out-of-bounds-read", "right after the end of x", line=2)


def test_a_finding_in_a_header_is_on_the_line_that_calls_it(ptx):
    text = f"""{PTX_HEAD}
.visible .entry k(.param .u64 x, .param .u64 out) {{
  .reg .b64 %rd<3>; .reg .f32 %f<2>;
  ld.param.u64 %rd1, [x];
  .loc 1 40 7
  .loc 2 900 3, function_name $name, inlined_at 3 77 5
  .loc 3 77 5, function_name $name, inlined_at 1 40 7
  .loc 2 901 3, function_name $name, inlined_at 3 77 5
  ld.global.f32 %f1, [%rd1+256];
  ret;
}}
.file 1 "/somewhere/kernel.cu"
.file 2 "/include/cuda_fp16.h"
.file 3 "/include/cuda_other.h"
"""
    found = check_finding(ptx(text), "out-of-bounds-read", "in code from cuda_fp16.h:901, called here", line=40)
    assert found["column"] == 7


def test_an_unknown_instruction_is_unsupported_with_its_line(ptx):
    text = (
        PTX_HEAD
        + """
.visible .entry k(.param .u64 x) {
  .reg .b64 %rd<3>;
  .loc 1 21 5
  frobnicate.b64 %rd1, %rd2;
  ret;
}
.file 1 "kernel.cu"
"""
    )
    unsupported = ptx(text).loaded["unsupported"]
    assert unsupported["instruction"] == "frobnicate.b64 %rd1, %rd2"
    assert unsupported["line"] == 21


@pytest.mark.parametrize(
    "instruction",
    [
        "shfl.down.b32 %r1, %r2, %r3, %r4;",
        "tcgen05.fence::before_thread_sync;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 16;",
        "mbarrier.try_wait.tomorrow.shared.b64 %p1, [%rd1], %rd2;",
        "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];",
        "call (%r1), %rd1, (%r2), proto;",
        "vadd.s32.s32.s32 %r1, %r2, %r3;",
        "mov.u32 %r1, %pm0;",
        "ld.global.v8.f32 {%f1, %f2, %f3, %f4, %f1, %f2, %f3, %f4}, [%rd1];",
    ],
)
def test_what_is_not_known_is_unsupported(ptx, instruction):
    registers = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .f64 %fd<9>;"
    executor = ptx(f"{PTX_HEAD}\n.visible .entry k(.param .u64 x) {{ {registers}\n{instruction}\nret; }}")
    assert "unsupported" in executor.loaded


PTX_HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"


@pytest.mark.parametrize("poison", [0xFF, 0x7F, 0x00])
def test_shared_memory_is_full_of_what_a_run_asks_for(cuda, poison):
    executor = cuda(kernel("__shared__ volatile float s[32]; if (threadIdx.x > 40) s[0] = 1; out[0] = s[threadIdx.x];"))
    asked = {} if poison == 0xFF else {"shared_poison": poison}
    ran = executor.run("k", inputs={"x": np.zeros(1, "f4")}, outputs={"out": np.ones(1, "f4")}, block=1, **asked)
    assert ran.arrays["out"].tobytes() == bytes([poison]) * 4
