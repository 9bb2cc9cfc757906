"""KL207: reads of shared memory behind guards, loops, transposed tiles and warp leaders, without a barrier."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.finding import RuleFinding, apply_fix

KERNEL = """__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
%s
}
"""
MISSING = {
    "behind a guard": """
    __shared__ float tile[256]; int t = threadIdx.x; int i = blockIdx.x * blockDim.x + t;
    if (i < n) tile[t] = x[i];
    if (i < n) out[i] = tile[255 - t];""",
    "behind both branches": """
    __shared__ float tile[256]; int t = threadIdx.x; int i = blockIdx.x * blockDim.x + t;
    if (i < n) { tile[t] = x[i]; } else { tile[t] = 0.0f; }
    float l = t > 0 ? tile[t - 1] : 0.0f;
    if (i < n) out[i] = l;""",
    "before a reduction loop": """
    __shared__ float s[256]; int t = threadIdx.x; int i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0.0f;
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (t < stride) s[t] += s[t + stride];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];""",
    "in a transposed tile": """
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    if (r < n && c < n) tile[threadIdx.y][threadIdx.x] = x[r * n + c];
    int tc = blockIdx.y * 32 + threadIdx.x, tr = blockIdx.x * 32 + threadIdx.y;
    if (tr < n && tc < n) out[tr * n + tc] = tile[threadIdx.x][threadIdx.y];""",
    "in a transposed tile of several rows": """
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = x[(r + j) * n + c];
    for (int j = 0; j < 32; j += 8) out[(c + j) * n + r] = tile[threadIdx.x][threadIdx.y + j];""",
    "after a warp leader's write": """
    __shared__ float partial[32]; int t = threadIdx.x, lane = t % 32, warp = t / 32;
    float v = t < n ? x[t] : 0.0f;
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if (lane == 0) partial[warp] = v;
    v = t < blockDim.x / 32 ? partial[lane] : 0.0f;
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if (t == 0) out[0] = v;""",
    "after a warp leader's write, before a loop of one thread": """
    __shared__ float partial[32]; int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    float v = t < n ? x[t] : 0.0f;
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if (lane == 0) { partial[warp] = v; }
    if (t == 0) { float s = 0.0f; for (int w = 0; w < 8; ++w) s += partial[w]; out[0] = s; }""",
    "before the products of a tile": """
    __shared__ float a[16][16]; __shared__ float b[16][16]; int tx = threadIdx.x, ty = threadIdx.y; float sum = 0.0f;
    for (int k0 = 0; k0 < n; k0 += 16) {
        a[ty][tx] = x[ty * n + k0 + tx]; b[ty][tx] = x[(k0 + ty) * n + tx];
        for (int k = 0; k < 16; ++k) sum += a[ty][k] * b[k][tx];
        __syncthreads();
    }
    out[ty * n + tx] = sum;""",
    "after a loop that fills the tile": """
    __shared__ float s[512]; for (int i = threadIdx.x; i < 512; i += blockDim.x) s[i] = x[i];
    float sum = 0.0f; for (int j = 0; j < 512; ++j) sum += s[j];
    if (threadIdx.x < n) out[threadIdx.x] = sum;""",
}
OWN = {
    "the same strided loop": """
    __shared__ float s[512]; for (int i = threadIdx.x; i < 512; i += blockDim.x) s[i] = x[i];
    float sum = 0.0f; for (int j = threadIdx.x; j < 512; j += blockDim.x) sum += s[j];
    if (threadIdx.x < n) out[threadIdx.x] = sum;""",
    "four elements of its own": """
    __shared__ float s[1024]; int t = threadIdx.x; for (int i = 0; i < 4; ++i) s[t * 4 + i] = x[i * n + t];
    float sum = 0.0f; for (int k = 0; k < 4; ++k) sum += s[t * 4 + k];
    if (t < n) out[t] = sum;""",
    "two halves": """
    __shared__ float s[512]; int t = threadIdx.x; s[t] = x[t]; s[t + 256] = x[t + 256];
    float a = s[t + 256] + s[t];
    if (t < n) out[t] = a;""",
    "two names of the thread": """
    __shared__ float s[256]; int t = threadIdx.x; s[threadIdx.x] = x[t];
    float a = s[t];
    if (t < n) out[t] = a;""",
    "four planes": """
    __shared__ float s[1024]; int t = threadIdx.x; for (int j = 0; j < 4; ++j) s[j * 256 + t] = x[j * n + t];
    float a = 0.0f; for (int k = 0; k < 4; ++k) a += s[k * 256 + t];
    if (t < n) out[t] = a;""",
    "one thread alone": """
    __shared__ float s[2]; int t = threadIdx.x; if (t == 0) { s[t] = x[0]; }
    if (t == 0) out[0] = s[0];""",
}


def found(body: str) -> list[RuleFinding]:
    return [each for each in cuda.check(KERNEL % body) if each.code in ("KL207", "KL208")]


@pytest.mark.parametrize("body", MISSING.values(), ids=MISSING)
def test_a_missing_barrier_is_found(body: str) -> None:
    assert {each.code for each in found(body)} == {"KL207"}


@pytest.mark.parametrize("body", OWN.values(), ids=OWN)
def test_elements_of_its_own_need_no_barrier(body: str) -> None:
    assert found(body) == []


@pytest.mark.parametrize("body", MISSING.values(), ids=MISSING)
def test_the_fix_puts_the_barrier_where_it_is_missing(body: str) -> None:
    text = KERNEL % body
    finding = next(each for each in cuda.check(text) if each.code == "KL207")
    fixed = apply_fix(text, finding.fixes[0])
    assert fixed.count("__syncthreads();") == text.count("__syncthreads();") + 1
    assert not any(each.code in ("KL202", "KL203", "KL207") for each in cuda.check(fixed))


def test_a_barrier_at_the_end_of_an_iteration_is_a_fix() -> None:
    text = KERNEL % (
        MISSING["before the products of a tile"]
        .replace("__syncthreads();", "", 1)
        .replace("for (int k = 0", "__syncthreads();\n        for (int k = 0")
    )
    finding = next(each for each in cuda.check(text) if each.code == "KL208")
    assert not any(each.code in ("KL207", "KL208") for each in cuda.check(apply_fix(text, finding.fixes[0])))


def test_no_fix_is_offered_in_divergent_control_flow() -> None:
    body = """    __shared__ float s[256]; int t = threadIdx.x;
    if (t < n) {
        s[t] = x[t];
        out[t] = s[255 - t];
    }"""
    (finding,) = found(body)
    assert finding.fixes == ()


def test_a_buffer_that_changes_with_the_iteration_needs_one_barrier() -> None:
    body = """    __shared__ float tile[2][256]; float sum = 0.0f;
    for (int step = 0; step < n; ++step) {
        int buffer = step % 2;
        tile[buffer][threadIdx.x] = x[step * 256 + threadIdx.x];
        __syncthreads();
        sum += tile[buffer][255 - threadIdx.x];
    }
    out[threadIdx.x] = sum;"""
    assert found(body) == []


BRANCH = """    __shared__ float s[256]; int t = threadIdx.x;
    if (t < n) {
        s[t] = x[t];
        __syncthreads();
        out[t] = s[n - 1 - t];
    }"""


@pytest.mark.parametrize(
    ("body", "fixed"),
    [
        (
            BRANCH,
            """    if (t < n) {
        s[t] = x[t];
    }
    __syncthreads();
    if (t < n) {
        out[t] = s[n - 1 - t];
    }""",
        ),
        (
            BRANCH.replace("        out[t] = s[n - 1 - t];\n", ""),
            "    if (t < n) {\n        s[t] = x[t];\n    }\n    __syncthreads();",
        ),
    ],
    ids=["work on both sides", "at the end"],
)
def test_a_barrier_in_a_branch_moves_out_of_it(body: str, fixed: str) -> None:
    text = KERNEL % body
    (finding,) = (each for each in cuda.check(text) if each.code == "KL202")
    done = apply_fix(text, finding.fixes[0])
    assert fixed in done
    assert not any(each.code in ("KL202", "KL203", "KL207") for each in cuda.check(done))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s[t] = x[t];", "float v = x[t]; s[t] = v;"),
        ("s[t] = x[t];", "s[t] = x[t]; ++t;"),
        ("s[t] = x[t];", "s[t] = x[t]; n = 4;"),
        ("s[t] = x[t];", "s[t] = x[t]; if (n > 9) return;"),
        ("(t < n)", "(t < n && x[t] > 0.0f)"),
        ("    }", "    } else { out[t] = 0.0f; }"),
        ("if (t < n)", "while (t < n)"),
        ("if (t < n) {", "if (t > 3) if (t < n) {"),
    ],
)
def test_a_branch_that_means_something_else_in_two_parts_stays(old: str, new: str) -> None:
    findings = [each for each in cuda.check(KERNEL % BRANCH.replace(old, new)) if each.code == "KL202"]
    assert findings
    assert all(each.fixes == () for each in findings)


LEFT = """    __shared__ float s[256]; int t = threadIdx.x;
    int i = blockIdx.x * blockDim.x + t;
    if (i >= n) return;
    const float v = x[i];
    s[t] = v * v;
    __syncthreads();
    for (int k = 128; k > 0; k >>= 1) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    if (t == 0) {
        out[blockIdx.x] = s[0];
    }"""
KEPT = """    int i = blockIdx.x * blockDim.x + t;
    const float v = i < n ? x[i] : 0;
    if (i < n) {
        s[t] = v * v;
    }
    __syncthreads();
    for (int k = 128; k > 0; k >>= 1) {
        if (i < n) {
            if (t < k) s[t] += s[t + k];
        }
        __syncthreads();
    }
    if (i < n) {
        if (t == 0) {
            out[blockIdx.x] = s[0];
        }
    }"""


@pytest.mark.parametrize(
    ("old", "new", "old_fixed", "new_fixed"),
    [
        ("", "", "", ""),
        ("if (i >= n) return;", "if (i >= n || t > 99) { return; }", "i < n", "i < n && t <= 99"),
        ("if (i >= n) return;", "float w = n;\n    if (w < i) return;", "i < n", "!(w < i)"),
        ("const float v = x[i];", "const int v = t * 4;", "const float v = i < n ? x[i] : 0;", "const int v = t * 4;"),
    ],
)
def test_threads_stay_for_the_barriers_behind_a_return(old: str, new: str, old_fixed: str, new_fixed: str) -> None:
    text = KERNEL % LEFT.replace(old, new, 1)
    (finding,) = (each for each in cuda.check(text) if each.code == "KL203")
    done = apply_fix(text, finding.fixes[0])
    assert KEPT.partition("\n")[2].replace(old_fixed, new_fixed) in done
    assert not any(each.code in ("KL202", "KL203") for each in cuda.check(done))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (i >= n) return;", "if (x[i] > 0.0f) return;"),
        ("if (i >= n) return;", "if (i >= n) { out[i] = 0.0f; return; }"),
        ("s[t] = v * v;", "s[t] = v * v; ++i;"),
        ("s[t] = v * v;", "s[t] = v * v; if (v > 9.0f) return;"),
        ("const float v = x[i];", "auto v = x[i];"),
        ("for (int k = 128; k > 0;", "for (int k = t; k > 0;"),
        ("if (t < k) s[t] += s[t + k];", "if (s[0] < 0.0f) break;"),
        ("    s[t] = v * v;", "#if FAST\\n    s[t] = v * v;\\n#endif".replace("\\n", "\n")),
    ],
)
def test_a_return_that_cannot_become_guards_stays(old: str, new: str) -> None:
    findings = [each for each in cuda.check(KERNEL % LEFT.replace(old, new)) if each.code == "KL203"]
    assert all(each.fixes == () for each in findings)
