"""Check idioms of repositories: the rules see the fault in it, and are silent where there is none."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda.host.repeated_arguments import repeated_arguments
from kernel_lsp.rules.finding import apply_fix
from tests.rules.found_codes import ordered_cuda_codes as codes

ROW = "int row = blockIdx.x * blockDim.x + threadIdx.x;\nif (row >= n) return;\n"
LINE = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n"


# --- KL210: rows through a pointer


@pytest.mark.parametrize(
    "body",
    [
        f"{ROW}const float* p = x + row * n;\nfor (int j = 0; j < n; ++j) out[row] = p[j];",
        f"{ROW}const float* p = &x[row * n];\nfor (int j = 0; j < n; ++j) out[row] = p[j];",
        f"{ROW}const float* base = x;\nconst float* p = base + (size_t)row * n;\nout[row] = p[n];",
        f"{ROW}x += row * n;\nout[row] = x[3];",
    ],
)
def test_a_row_of_each_thread_is_strided_through_a_pointer_too(body: str) -> None:
    assert in_kernel(body) == ["KL210"]


@pytest.mark.parametrize(
    "body",
    [
        "const float* p = x + blockIdx.x * n;\nfor (int j = threadIdx.x; j < n; j += blockDim.x) out[j] = p[j];",
        f"{LINE}const float* p = x + i / 32 * n;\nif (i < n) out[i] = p[threadIdx.x % 32];",
        f"{LINE}const float* p = x + i * 5;\nif (i < n) out[i] = p[0] + p[1] * p[4];",
        f"{LINE}const float* p = i < n ? x + i * n : x;\nif (i < n) out[i] = p[0];",
        "x += blockIdx.x * n;\nfor (int j = threadIdx.x; j < n; j += blockDim.x) out[j] = x[j];",
        "__shared__ float s[1024];\nfloat* p = &s[threadIdx.x * 8];\nif (threadIdx.x < n) out[threadIdx.x] = p[1];",
    ],
)
def test_pointers_to_what_a_block_or_a_warp_shares_are_silent(body: str) -> None:
    assert "KL210" not in in_kernel(body)


# --- KL214: who waits for one address


@pytest.mark.parametrize(
    "body",
    [
        f"{LINE}if (i < n && x[i] == 7.0f) atomicAdd(out, 1.0f);",
        f"{LINE}if (i < n && x[i] > 0.0f) atomicAdd(&out[0], x[i]);",
        "for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&out[blockIdx.x], x[i]);",
        f"{LINE}if (i >= n) return;\natomicAdd(out + 1, x[i]);",
        f"{LINE}const bool is_inside = i < n;\nif (is_inside) atomicMax(out, x[i]);",
    ],
)
def test_all_threads_of_a_block_on_one_address_are_found(body: str) -> None:
    assert "KL214" in in_kernel(body)


@pytest.mark.parametrize(
    "body",
    [
        f"{LINE}if (threadIdx.x == 0 && i < n) atomicAdd(out, x[i]);",
        f"{LINE}int lane = threadIdx.x & 31;\nif (lane == 0) atomicAdd(&out[blockIdx.x], x[n]);",
        f"{LINE}if (threadIdx.x < 1) atomicAdd(out, x[n]);",
        f"{LINE}if (i < n && x[i] > out[0]) atomicMax(out, x[i]);",
        f"{LINE}if (i < n && x[i] != x[i]) atomicAdd(out, 1.0f);",
        f"{LINE}if (i < n && isnan(x[i])) atomicAdd(out, 1.0f);",
        f"{LINE}if (threadIdx.x != 0) return;\natomicAdd(out, x[n]);",
        f"{LINE}if (i < n) atomicAdd(&out[(int)x[i]], 1.0f);",
        "LOOP(k, n) { atomicAdd(&out[k], x[k]); }\nout[0] = x[threadIdx.x < n];",
    ],
)
def test_few_threads_or_many_addresses_are_silent(body: str) -> None:
    assert "KL214" not in in_kernel(body)


# --- KL201: one of two dims

PLANE = "int row = blockIdx.y * blockDim.y + threadIdx.y;\nint col = blockIdx.x * blockDim.x + threadIdx.x;\n"


def test_an_index_along_which_nothing_is_checked_is_found_beside_one_that_is() -> None:
    store = "out[row * n + col] = x[col];"
    assert "KL201" in in_kernel(f"{PLANE}if (row < n) {store}")
    assert in_kernel(f"{PLANE}if (row < n && col < n) {store}") == []
    assert in_kernel(f"{PLANE}int i = row * n + col;\nif (i < n * n) out[i] = x[i];") == []


@pytest.mark.parametrize(("grid", "is_found"), [("N", False), ("ceil_div(N, 32)", True), ("(N + 31) // 32", True)])
def test_a_plan_that_rounds_no_grid_up_has_no_thread_too_many(grid: str, is_found: bool) -> None:
    plan = (
        f"// kernel-lsp: 1\n// op: k(x: f32[N, 32]) -> (out: f32[N, 32])\n// launch: k<<<{grid}, 32>>>(x, out, N)\n\n"
    )
    body = "out[blockIdx.x * 32 + threadIdx.x] = x[n];"
    kernel = f"__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {{\n{body}\n}}\n"
    assert ("KL201" in codes(f"// kernel-lsp: 1\n{plan}{kernel}")) is is_found


# --- KL207 and KL208: what one thread writes for all, and rounds that nothing orders

MEAN = "__shared__ float mean;\nif (threadIdx.x == 0) mean = x[0] / n;\n{}if (threadIdx.x < n) out[threadIdx.x] = mean;"
TREE = (
    "__shared__ float s[256];\ns[threadIdx.x] = x[n];\n__syncthreads();\n"
    "for (int k = 128; k > 0; k /= 2) {{\n    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];\n{}}}\n"
    "if (threadIdx.x == 0) out[0] = s[0];"
)


@pytest.mark.parametrize(("text", "code"), [(MEAN, "KL207"), (TREE, "KL208")])
def test_a_barrier_is_what_is_missing(text: str, code: str) -> None:
    assert in_kernel(text.format("")) == [code]
    assert in_kernel(text.format("__syncthreads();\n")) == []


def test_elements_that_are_a_thread_s_own_need_no_barrier_between_rounds() -> None:
    steps = "for (int k = 1; k < 8; ++k) s[8 * threadIdx.x + k] += s[8 * threadIdx.x + k - 1];"
    fill = "for (int k = 0; k < 8; ++k) s[8 * threadIdx.x + k] = x[n];"
    assert in_kernel(f"__shared__ float s[256];\n{fill}\n{steps}\nout[threadIdx.x + n] = x[0];") == []


def test_the_thread_that_wrote_may_read_without_a_barrier() -> None:
    assert in_kernel(MEAN.replace("threadIdx.x < n) out", "threadIdx.x == 0) out").format("")) == []


# --- KL215 and KL217


def test_a_product_is_widened_at_its_first_factor() -> None:
    head = "__global__ void k(float* out, int heads, int n) {\n    const int b = blockIdx.x;\n"
    text = f"{head}    const int64_t at = b * heads * n;\n    if (threadIdx.x < n) out[at + threadIdx.x] = 0.0f;\n}}\n"
    (finding,) = cuda.check(text)
    fixed = apply_fix(text, finding.fixes[0])
    assert "static_cast<int64_t>(b) * heads * n" in fixed
    assert (finding.code, cuda.check(fixed)) == ("KL215", ())


@pytest.mark.parametrize(
    ("pointer", "is_misaligned"),
    [
        ("reinterpret_cast<const float4*>(x + i)", True),
        ("(const float2 *)&x[i]", True),
        ("reinterpret_cast<const float4*>(x + 3 * i)", True),
        ("reinterpret_cast<const float4*>(x + 4 * i)", False),
        ("(const float2 *)&x[2 * i]", False),
        ("reinterpret_cast<const float4*>(x + blockIdx.x * n)", False),
        ("reinterpret_cast<const float4*>(x + n + 4 * i)", False),
    ],
)
def test_vectors_begin_at_multiples_of_their_size(pointer: str, is_misaligned: bool) -> None:
    assert ("KL217" in in_kernel(f"{LINE}if (i < n) out[i] = (*{pointer}).x;")) is is_misaligned


def test_a_vector_that_only_some_threads_read_may_be_right() -> None:
    assert in_kernel(f"{LINE}if (i < n && i % 4 == 0) out[i] = (*reinterpret_cast<const float4*>(x + i)).x;") == []


# --- KL220: doubles among floats


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("float v = (float)x[i];\n    y[i] = T(v * 0.5);", True),
        ("float v = x[i];\n    y[i] = pow(v, 2.0);", True),
        ("float v = x[i];\n    y[i] = other(v, 2.0);", False),
        ("double v = x[i];\n    y[i] = T(v * 0.5);", False),
        ("float v = 0.5f * float(x[i]);\n    y[i] = T(v);", False),
    ],
)
def test_a_double_is_found_where_it_meets_a_float(body: str, is_found: bool) -> None:
    text = f"template <typename T>\n__device__ void f(const T* x, T* y, int i) {{\n    {body}\n}}\n"
    findings = cuda.check(text)
    assert [finding.code for finding in findings] == ["KL220"] * is_found
    for finding in findings:
        assert cuda.check(apply_fix(text, finding.fixes[0])) == ()


# --- KL230: what a grammar takes for a declaration


@pytest.mark.parametrize(("x", "code"), [("64", "KL230"), ("16", None)])
def test_a_block_of_named_sizes_is_read_though_it_looks_like_a_declaration(x: str, code: str | None) -> None:
    head = f"#define BX {x}\nconstexpr int BY = 32;\n__global__ void k(float* x) {{ x[threadIdx.x] = 0.0f; }}\n"
    call = "    dim3 block(BX, BY);\n    k<<<1, block>>>(x);\n    return cudaGetLastError();\n"
    text = f"{head}cudaError_t run(float* x) {{\n{call}}}\n"
    assert ("KL230" in codes(text)) is (code is not None)


# --- KL240 and KL246: one buffer for two pointers

SHIFT = (
    "__global__ void shift(const float*{0} x, float*{0} y, int n) {{ if (threadIdx.x < n) y[threadIdx.x] = x[n]; }}\n"
)
RUN = "cudaError_t run(float* a, float* b) {{ shift<<<1, 32>>>({}, 8); return cudaGetLastError(); }}\n"


def test_one_buffer_for_two_pointers_contradicts_restrict() -> None:
    text = SHIFT.format(" __restrict__") + RUN.format("a, a")
    (finding,) = cuda.check(text)
    fixed = apply_fix(text, finding.fixes[0])
    assert finding.code == "KL246"
    assert (fixed, codes(fixed)) == (SHIFT.format("") + RUN.format("a, a"), [])
    assert codes(SHIFT.format(" __restrict__") + RUN.format("a, b")) == []


def test_restrict_is_not_proposed_for_pointers_that_a_launch_passes_one_buffer_for() -> None:
    assert codes(SHIFT.format("") + RUN.format("a, a")) == []
    other = SHIFT.format(" __restrict__").replace("shift", "other")
    assert codes(other + SHIFT.format("") + RUN.format("a, a")) == []
    assert codes(other + SHIFT.format("") + RUN.format("a, b")) == ["KL240"]


def test_restrict_is_not_proposed_in_a_program_that_never_says_it() -> None:
    assert codes(SHIFT.format("") + RUN.format("a, b")) == []


def test_a_launch_that_changes_changes_what_is_said_of_its_kernel() -> None:
    kernel = SHIFT.format(" __restrict__")
    assert [codes(kernel + RUN.format(given)) for given in ("a, b", "a, a", "a, b")] == [[], ["KL246"], []]


@pytest.mark.parametrize(
    ("launch", "pairs"),
    [
        ("k<<<1, 32>>>(a, a);", {"k": ((0, 1, "a"),)}),
        ("ns::k<float, 4><<<dim3(1, 2), 32, 0, s>>>(x.data_ptr<float>(), f(1, 2), x.data_ptr<float>())", None),
        ("// launch: k<<<B, 32>>>(x, n, x)", {"k": ((0, 2, "x"),)}),
        ("k<<<1, 32>>>(1, 1, f(a), f(a));", {}),
        ("k<<<1, 32>>>(a, a", {}),
        ("k<<<", {}),
    ],
)
def test_arguments_are_compared_as_they_are_written(launch: str, pairs: dict | None) -> None:
    wanted = {"k": ((0, 2, "x.data_ptr<float>()"),)} if pairs is None else pairs
    assert repeated_arguments(launch, lambda name, n: name.rpartition("::")[2]) == wanted


# --- below: what the tests share


def in_kernel(body: str) -> list[str]:
    return codes(f"__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {{\n{body}\n}}\n")
