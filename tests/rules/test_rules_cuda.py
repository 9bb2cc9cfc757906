"""Tricky cases of the CUDA rules: where they must speak, and where they must not."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path

import pytest

from kernel_lsp.core.finding import Severity
from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda.checking import MAX_FINDINGS
from kernel_lsp.rules.finding import apply_fix
from kernel_lsp.rules.registry import rules_of
from tests.rules.found_codes import ordered_cuda_codes as codes

ROOT = Path(__file__).parent.parent.parent
N_EDITS = 60


# --- where nothing may be said


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/**/*.cu")), ids=lambda path: path.name)
def test_the_examples_have_no_finding(path: Path) -> None:
    assert cuda.check(path.read_text()) == ()


@pytest.mark.parametrize("text", ["", "\n", "int x;", "// kernel-lsp", "#include <cuda.h>\n", "__global__ void k();"])
def test_a_text_without_kernels_has_no_finding(text: str) -> None:
    assert cuda.check(text) == ()


@pytest.mark.parametrize(
    "body",
    [
        "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i];",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\nif (i >= n) return;\nout[i] = x[i];",
        "int i = min(blockIdx.x * blockDim.x + threadIdx.x, n - 1);\nout[i] = x[i];",
        "int row = blockIdx.x;\nfor (int j = threadIdx.x; j < n; j += blockDim.x) out[row * n + j] = x[row * n + j];",
        "int row = blockIdx.x * blockDim.y + threadIdx.y;\nint col = threadIdx.x;\n"
        "if (row < n) out[row * 32 + col] = x[row * 32 + col];",
        "int warp = threadIdx.x / 32, lane = threadIdx.x % 32;\nif (warp < n) out[warp * n + lane] = x[lane];",
    ],
)
def test_guarded_and_coalesced_accesses_are_silent(body: str) -> None:
    assert in_kernel(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "int i = threadIdx.x * 8;\nif (i < n) VECTOR(out[i]) = VECTOR(x[i]);",
        "int i = threadIdx.x * 8;\nif (i < n) *reinterpret_cast<float4*>(&out[i]) = *(const float4*)(&x[i]);",
        "int i = threadIdx.x;\nif (i < n) out[i] = x[5 * i] + x[5 * i + 1] * x[5 * i + 4];",
    ],
)
def test_vectors_and_whole_records_are_not_strided(body: str) -> None:
    assert codes(KERNEL.format(body=body)) == []


def test_one_written_pointer_beside_restricted_ones_overlaps_with_nothing() -> None:
    head = (
        "__global__ void k(const float* __restrict__ x, {} out, {} y) {{ out[threadIdx.x] = y[0] = x[threadIdx.x]; }}"
    )
    assert codes(head.format("float* __restrict__", "float*")) == []
    assert codes(head.format("float*", "float*")) == []


def test_waiting_for_one_stream_after_the_other_is_no_wait_in_each_round() -> None:
    loop = "void all(cudaStream_t* s, int n) {{ for (int i = 0; i < n; ++i) check(cudaStreamSynchronize({})); }}"
    assert codes(loop.format("s[i]")) == []
    assert codes(loop.format("s[0]")) == ["KL252"]


@pytest.mark.parametrize(
    "body",
    [
        "if (n > 3) {\n    __syncthreads();\n}\nout[0] = x[0];",
        "for (int s = blockDim.x / 2; s > 0; s >>= 1) {\n    __syncthreads();\n}\nout[0] = x[n];",
        "if (blockIdx.x >= n) return;\n__syncthreads();\nout[0] = x[0];",
        "int done = __syncthreads_or(threadIdx.x == 0);\nif (done) __syncthreads();\nout[n] = x[0];",
        "int m = (n + blockDim.x - 1) / blockDim.x * blockDim.x;\n"
        "for (int i = threadIdx.x; i < m; i += blockDim.x) __syncthreads();\nout[0] = x[0];",
        "for (int i = threadIdx.x; i < n; i += 32) out[i] = x[i];\nfor (int i = 0; i < n; ++i) __syncthreads();",
    ],
)
def test_barriers_that_all_threads_reach_are_silent(body: str) -> None:
    assert in_kernel(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "if (threadIdx.x < 32) out[n] = __shfl_down_sync(0xffffffffu, x[0], 1);",
        "if (threadIdx.x / 32 == 0) out[n] = __shfl_down_sync(0xffffffff, x[0], 1);",
        "unsigned mask = __ballot_sync(0xffffffff, threadIdx.x < n);\nout[0] = __shfl_sync(mask, x[0], 0);",
    ],
)
def test_shuffles_of_whole_warps_are_silent(body: str) -> None:
    assert in_kernel(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "__shared__ float s[256];\ns[threadIdx.x] = x[n];\nfloat own = s[threadIdx.x];\nout[0] = own;",
        "__shared__ float s[256];\ns[threadIdx.x] = x[n];\ncg::sync(block);\nout[0] = s[0];",
        "__shared__ float s[256];\ns[threadIdx.x] = x[n];\nwait_for_all();\nout[0] = s[255 - threadIdx.x];",
        "float s[4];\ns[threadIdx.x] = x[n];\nout[0] = s[3 - threadIdx.x];",
        "__shared__ float s[2][256];\nint turn = 0;\nfor (int i = 0; i < n; ++i) {\n    s[turn][threadIdx.x] = x[i];\n"
        "    __syncthreads();\n    out[i] = s[turn][255 - threadIdx.x];\n    turn ^= 1;\n}",
    ],
)
def test_shared_memory_that_is_ordered_is_silent(body: str) -> None:
    assert not {"KL207", "KL208"} & set(in_kernel(body))


@pytest.mark.parametrize(
    "body",
    [
        "float y = 0.0;\nout[0] = y + x[n];",
        "double y = x[n] * 0.5;\nout[0] = y;",
        "out[0] = x[n] * 0x1p3f;",
        "out[0] = x[n] * (float)0.5;",
        "const float half = 1.0 / 2.0;\nout[0] = half * x[n];",
        'asm("// 0.5");\nout[n] = x[0];  // 0.5 * x',
    ],
)
def test_doubles_that_cost_nothing_or_are_meant_are_silent(body: str) -> None:
    assert in_kernel(body) == []


def test_a_literal_beside_a_type_parameter_is_silent_since_the_type_may_be_double() -> None:
    assert codes("template <typename T>\n__device__ T half(T x, float y) { return x * 0.5; }\n") == []


def test_code_for_other_compilers_is_left_alone() -> None:
    text = "__device__ float f(float x) {\n#ifdef OLD\n    return __shfl(x, 0);\n#else\n    return x;\n#endif\n}\n"
    assert cuda.check(text) == ()


def test_a_plan_that_promises_divisibility_needs_no_check() -> None:
    text = (
        "// kernel-lsp: 1\n// op: twice(x: f32[N]) -> (out: f32[N])\n{where}"
        "// launch: twice_all<<<N // 256, 256>>>(x, out, N)\n\n"
        "__global__ void twice_all(const float* __restrict__ x, float* __restrict__ out, int n) {{\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    out[i] = x[i] / n;\n}}\n"
    )
    assert codes(text.format(where="")) == ["KL201"]
    assert codes(text.format(where="// where: N % 256 == 0\n")) == []


def test_nolint_silences_its_line() -> None:
    body = "out[0] = x[n] * 0.5;"
    assert in_kernel(body) == ["KL220"]
    assert in_kernel(f"{body}  // NOLINT") == []
    assert in_kernel(f"{body}  // NOLINT(KL220)") == []
    assert in_kernel(f"{body}  // NOLINT(KL201)") == ["KL220"]


# --- where something must be said


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("int t = threadIdx.x;\nif (t == 0) __syncthreads();\nout[n] = x[0];", "KL202"),
        ("if (x[threadIdx.x] > 0) { __syncthreads(); }\nout[n] = x[0];", "KL202"),
        ("for (int i = threadIdx.x; i < n; i += blockDim.x) {\n    __syncthreads();\n}\nout[0] = x[0];", "KL202"),
        ("switch (threadIdx.x) { case 0: __syncthreads(); }\nout[n] = x[0];", "KL202"),
        ("auto block = cg::this_thread_block();\nif (block.thread_rank() < n) block.sync();\nout[0] = x[0];", "KL202"),
        ("int i = threadIdx.x;\nif (i >= n) return;\n__syncthreads();\nout[i] = x[i];", "KL203"),
        ("out[n] = __shfl_xor_sync(0xffff, x[0], 1);", "KL205"),
        ("if (threadIdx.x == 0) out[n] = __shfl_sync(0xffffffff, x[0], 1);", "KL206"),
        ("if (threadIdx.x < 40) out[n] = __shfl_sync(0xffffffffu, x[0], 1);", "KL206"),
        ("__shared__ float s[64];\nint t = threadIdx.x;\ns[t] = x[n];\nfloat y = s[t + 1];\nout[t] = y;", "KL207"),
        ("int i = threadIdx.x * 8;\nif (i < n) out[i] = x[i];", "KL210"),
        ("int i = blockIdx.x * blockDim.x + threadIdx.x;\nif (i < n) out[i << 4] = x[0];", "KL210"),
        ("for (int r = threadIdx.x; r < n; r += blockDim.x) out[r * n] = x[r * n];", "KL210"),
        ("if (threadIdx.x < n) atomicAdd(out, x[threadIdx.x]);", "KL214"),
        ("long long i = blockIdx.x * n;\nout[i] = x[i];", "KL215"),
        ("out[0] = x[n] > 0.0 ? x[n] : -1.5 * x[n];", "KL220"),
        ("float y = x[n];\ny *= 2.5;\nout[0] = y;", "KL220"),
        ("out[0] = pow(x[n], 2.0);", "KL220"),
        ("out[0] = max(x[n], 0.0);", "KL220"),
        ("__half s = 0;\nfor (int i = 0; i < n; ++i) s = __hadd(s, s);\nout[0] = x[0];", "KL226"),
        ("float* p = (float*)malloc(n);\nout[0] = x[0] + p[0];", "KL244"),
        ("out[0] = x[n] * sizeof(x);", "KL245"),
    ],
)
def test_a_fault_in_a_kernel_is_found(body: str, code: str) -> None:
    assert code in in_kernel(body)


@pytest.mark.parametrize(
    ("launch", "code"),
    [
        ("k<<<n, 2048>>>(x);", "KL230"),
        ("k<<<n, dim3(32, 33)>>>(x);", "KL230"),
        ("dim3 block(8, 1, 128);\nk<<<n, block>>>(x);", "KL230"),
        ("const int BLOCK = 4 * 512;\nk<<<n, BLOCK>>>(x);", "KL230"),
        ("k<<<n, SIZE>>>(x);", "KL230"),
        ("k<<<n, 256, 64 * 1024>>>(x);", "KL232"),
        ("k<<<n, 256>>>(x);", "KL233"),
        ("k<<<n, 256, 0, stream>>>(x);", "KL233"),
    ],
)
def test_a_launch_beyond_the_limits_is_found(launch: str, code: str) -> None:
    kernel = "#define SIZE 1056\n__global__ void k(float* x) {\n    extern __shared__ float s[];\n    x[0] = s[0];\n}\n"
    host = f"cudaError_t run(float* x, int n, cudaStream_t stream) {{\n{launch}\nreturn cudaGetLastError();\n}}\n"
    assert code in codes(kernel + host)


@pytest.mark.parametrize(
    "launch", ["k<<<n, 256, bytes>>>(x);", "k<<<n, threads, 4>>>(x);", "dim3 b(64);\nb.x = n;\nk<<<n, b, 4>>>(x);"]
)
def test_a_launch_whose_sizes_are_not_known_is_silent(launch: str) -> None:
    kernel = "__global__ void k(float* x) {\n    extern __shared__ float s[];\n    x[0] = s[0];\n}\n"
    host = f"cudaError_t run(float* x, int n, int bytes) {{\n{launch}\nreturn cudaGetLastError();\n}}\n"
    assert codes(kernel + host) == []


def test_the_same_name_in_two_scopes_is_two_variables() -> None:
    body = (
        "for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i];\n"
        "for (int i = 0; i < n; ++i) {\n    __syncthreads();\n    out[i * n] = x[i * n];\n}"
    )
    assert in_kernel(body) == []


def test_a_warning_of_the_plan_stays_a_warning() -> None:
    rule = next(rule for rule in rules_of("cuda") if rule.code == "KL237")
    severities = {finding.severity for finding in cuda.check(rule.bad) if finding.code == "KL237"}
    assert severities == {Severity.WARNING, Severity.HINT}


def test_the_plan_and_its_kernel_are_compared_at_the_line_of_the_launch() -> None:
    rule = next(rule for rule in rules_of("cuda") if rule.code == "KL236")
    (finding,) = cuda.check(rule.bad)
    assert finding.range.start_line == 2
    assert "argument-count" in finding.message


# --- places and fixes


def test_columns_count_code_points() -> None:
    line = "    /* äöü𝄞 */ out[0] = x[n] * 0.5;\n"
    (finding,) = cuda.check(KERNEL.format(body=line))
    assert line[finding.range.start_column : finding.range.end_column] == "0.5"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end_gives_the_same_place(end: str) -> None:
    text = KERNEL.format(body="    int i = 0;\n    out[i] = x[n] * 0.5;\n").replace("\n", end)
    (finding,) = cuda.check(text)
    assert (finding.range.start_line, finding.range.start_column, finding.range.end_column) == (2, 20, 23)


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("out[0] = x[n] * 1e-3;", "out[0] = x[n] * 1e-3f;"),
        ("out[0] = pow(x[n], -2.5);", "out[0] = pow(x[n], -2.5f);"),
        ("out[0] = min(x[n], 1.0);", "out[0] = min(x[n], 1.0f);"),
        ("size_t i = blockIdx.x * n; out[i] = x[i];", "size_t i = static_cast<size_t>(blockIdx.x) * n; out[i] = x[i];"),
        ("out[0] = __shfl(x[n], 0);", "out[0] = __shfl_sync(0xffffffffu, x[n], 0);"),
    ],
)
def test_a_fix_writes_what_is_meant(body: str, after: str) -> None:
    text = KERNEL.format(body=f"    {body}\n")
    fix = next(fix for finding in cuda.check(text) for fix in finding.fixes)
    assert apply_fix(text, fix).splitlines()[1].strip() == after


def test_a_literal_that_no_float_can_hold_has_no_fix() -> None:
    (finding,) = cuda.check(KERNEL.format(body="    out[0] = x[n] * 1e300;\n"))
    assert (finding.code, finding.fixes) == ("KL220", ())


def test_restrict_is_put_in_front_of_each_name() -> None:
    text = "__global__ void k(const float *x, float* y) { y[0] = x[0]; }\n"
    fix = next(fix for finding in cuda.check(text) for fix in finding.fixes)
    assert "(const float * __restrict__ x, float* __restrict__ y)" in apply_fix(text, fix)


# --- trees that are kept


def test_an_incremental_parse_finds_what_a_fresh_one_does() -> None:
    text = "\n".join(rule.bad for rule in rules_of("cuda") if "// op:" not in rule.bad)
    random_edits = random.Random(3)
    tree = cuda.parse(text)
    for _ in range(N_EDITS):
        start = random_edits.randrange(len(text))
        end = min(start + random_edits.choice((0, 0, 1, 5, 40)), len(text))
        text = text[:start] + random_edits.choice(("", "x", "\n", "{", "}", "ä", "𝄞", "0.5", "// ")) + text[end:]
        tree = cuda.parse(text, tree)
        assert str(tree.tree.root_node) == str(cuda.parse(text).tree.root_node)
        assert cuda.check(text, tree=tree) == cuda.check(text)


def test_a_parse_is_reused_only_for_its_own_text() -> None:
    text = KERNEL.format(body="    out[0] = x[n] * 0.5;\n")
    assert cuda.check(text, tree=cuda.parse("int x;")) == cuda.check(text) != ()


def test_moving_a_function_moves_its_findings() -> None:
    text = KERNEL.format(body="    out[0] = x[n] * 0.5;\n")
    before, after = cuda.check(text), cuda.check("\n\n" + text)
    assert [finding.range.start_line for finding in after] == [finding.range.start_line + 2 for finding in before]
    assert apply_fix("\n\n" + text, after[0].fixes[0]) == "\n\n" + apply_fix(text, before[0].fixes[0])


def test_what_is_kept_of_a_function_depends_on_the_constants_of_the_file() -> None:
    body = "    int i = threadIdx.x * STEP;\n    if (i < n) out[i] = x[i];\n"
    assert codes("#define STEP 2\n" + KERNEL.format(body=body)) == []
    assert codes("#define STEP 8\n" + KERNEL.format(body=body)) == ["KL210", "KL210"]


NUMBERED = "__global__ void {name}(float* __restrict__ x, int n) {{\n    x[n] = x[n] * 0.5;\n}}\n"


def test_functions_that_differ_in_the_number_of_their_name_have_findings_of_their_own() -> None:
    text = "".join(NUMBERED.format(name=f"halve{index}") for index in range(12))
    found = cuda.check(text)
    assert [(finding.code, finding.range.start_line) for finding in found] == [("KL220", 3 * i + 1) for i in range(12)]
    alone = cuda.check(NUMBERED.format(name="halve0"))[0].range
    assert {(finding.range.start_column, finding.range.end_column) for finding in found} == {
        (alone.start_column, alone.end_column)
    }


def test_a_function_that_calls_itself_shares_nothing() -> None:
    function = "__device__ float {name}(float x) {{\n    return x < 1.0f ? x * 0.5 : {called}(x);\n}}\n"
    text = function.format(name="half1", called="half1") + function.format(name="half2", called="half1")
    assert codes(text) == ["KL220", "KL220"]


def test_the_first_findings_are_shown_of_a_file_with_too_many() -> None:
    text = "".join(NUMBERED.format(name=f"halve{'x' * (index % 7)}{index}") for index in range(MAX_FINDINGS + 100))
    found = cuda.check(text)
    assert [finding.range.start_line for finding in found] == [3 * index + 1 for index in range(MAX_FINDINGS)]


def test_findings_that_are_silenced_leave_room_for_those_behind_them() -> None:
    silenced = NUMBERED.format(name="silent").replace("0.5;", "0.5;  // NOLINT")
    text = silenced * MAX_FINDINGS + NUMBERED.format(name="halve")
    assert [finding.range.start_line for finding in cuda.check(text)] == [3 * MAX_FINDINGS + 1]


def test_a_function_that_was_behind_the_last_finding_is_checked_when_it_is_not() -> None:
    many = "".join(NUMBERED.format(name=f"halve{index}") for index in range(MAX_FINDINGS))
    last = NUMBERED.format(name="last").replace("0.5", "0.25")
    assert len(cuda.check(many + last)) == MAX_FINDINGS
    assert len(cuda.check(many.replace("0.5;", "0.5f;") + last)) == 1


def test_host_code_is_read_behind_the_last_finding() -> None:
    many = "".join(NUMBERED.format(name=f"halve{index}") for index in range(MAX_FINDINGS - 1))
    launches = "void run(float* x, int n) {\n    halve0<<<n, 2048>>>(x, n);\n    check(cudaGetLastError());\n}\n"
    assert codes(many + launches)[-1] == "KL230"


# --- below: what the tests share

KERNEL = "__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {{\n{body}}}\n"


def in_kernel(body: str) -> list[str]:
    return codes(KERNEL.format(body=textwrap.indent(body, "    ") + "\n"))


# --- idioms that engineers write

SCAN_STEP = """
int a = 2 * threadIdx.x, b = a + 1;
float t = tile[a];
tile[a] = tile[b];
tile[b] += t;
"""
COUNT = """
tile[threadIdx.x] = 0.0f;
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) atomicAdd(&tile[int(x[i])], 1.0f);
"""
TAIL = """
int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
if (i + 4 <= n) {
    *reinterpret_cast<float4*>(out + i) = *reinterpret_cast<const float4*>(x + i);
} else {
    for (int k = i; k < n; ++k) out[k] = x[k];
}
"""
REDUCE = """
template <int SIZE>
__device__ void reduce(volatile float* data, int t) {
    if (SIZE >= 64) data[t] += data[t + 32];
    if (SIZE >= 32) data[t] += data[t + 16];
}
"""
SWAP = """
__global__ void k(float* a, float* b, int n) {
    float* t = a;
    a = b;
    b = t;
    a[0] = b[n];
}
"""


def in_shared(body: str) -> list[str]:
    return in_kernel(f"__shared__ float tile[256];{body}")


def test_elements_that_a_thread_exchanges_are_its_own() -> None:
    assert in_shared(SCAN_STEP) == []
    assert in_shared(SCAN_STEP.replace("tile[b] += t;", "out[n] = tile[threadIdx.x] + t;")) == ["KL207"]


def test_counting_in_shared_memory_waits_until_all_of_it_is_cleared() -> None:
    assert in_shared(COUNT) == ["KL207"]
    assert in_shared(COUNT.replace("int i", "__syncthreads();\nint i")) == []
    assert in_shared(COUNT.replace("int(x[i])", "threadIdx.x")) == []


def test_what_one_thread_does_at_the_end_is_not_strided() -> None:
    assert in_kernel(TAIL) == []


def test_a_warp_s_steps_under_conditions_of_a_template_are_steps_all_the_same() -> None:
    assert codes(REDUCE) == ["KL209"]


def test_pointers_that_change_places_are_not_to_be_restricted() -> None:
    assert "KL240" not in codes(SWAP)
