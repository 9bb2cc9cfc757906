"""Faults that only show when a kernel runs: through helper functions, classes, macros and names for indices."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.finding import apply_fix

TILE = """#define SIDE 16
__device__ void load(float (*t)[SIDE + 1], const float* g, int d) { t[threadIdx.y][threadIdx.x] = g[d * threadIdx.x]; }
__device__ void put(float* g, const float (*t)[SIDE + 1], int ld) { g[threadIdx.x] = t[threadIdx.x][threadIdx.y]; }
__global__ void flip(const float* in, float* out, int ld) {
    __shared__ float t[SIDE][SIDE + 1];
    load(t, in, ld);
    BARRIER
    put(out, t, ld);
}
"""
REDUCER = """template <typename T, int N>
struct Reducer {
    __device__ static T sum(T v, T* buffer) {
        const int t = threadIdx.x;
        buffer[t] = v;
        BARRIER
        for (int w = N / 2; w > 0; w /= 2) {
            if (t < w) buffer[t] += buffer[t + w];
            __syncthreads();
        }
        return buffer[0];
    }
};
__global__ void total(const float* x, float* y) {
    __shared__ float parts[256];
    float v = Reducer<float, 256>::sum(x[threadIdx.x], parts);
    if (threadIdx.x == 0) *y = v;
}
"""
HELPER = """__device__ void bump(float* table, long at, float by) { UPDATE; }
__global__ void scatter(const long* ids, const float* g, float* table, int n, int d) {
    if (blockIdx.x < n && threadIdx.x < d) bump(table, ids[blockIdx.x] * d + threadIdx.x, g[threadIdx.x]);
}
"""
PAIRS = """__global__ void pairs(int* v) {
    __shared__ int s[512];
    int t = threadIdx.x;
    s[t] = v[blockIdx.x * 512 + t];
    __syncthreads();
    for (int pass = 0; pass < 512; ++pass) {
        int mate = (pass & 1) == (t & 1) ? t + 1 : t;
        if (mate > t && GUARDs[t] > s[t + 1]) { int k = s[t]; s[t] = s[t + 1]; s[t + 1] = k; }
        __syncthreads();
    }
    v[blockIdx.x * 512 + t] = s[t];
}
"""
MACRO = """#define AT(r, c) tile[(r) * 33 + (c)]
__global__ void flip(const float* in, float* out) {
    __shared__ float tile[32 * 33];
    AT(threadIdx.y, threadIdx.x) = in[threadIdx.y * 32 + threadIdx.x];
    BARRIER
    out[threadIdx.y * 32 + threadIdx.x] = AT(threadIdx.x, threadIdx.y);
}
"""
MET = """__device__ float all(float v, float* parts) {
    parts[threadIdx.x] = v;
    __syncthreads();
    return parts[0];
}
__global__ void mean(const float* x, float* y, int n) {
    __shared__ float parts[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    CALL
}
"""
SYNC = "__syncthreads();"


def found(text: str) -> set[tuple[str, int]]:
    return {(each.code, each.range.start_line + 1) for each in cuda.check(text)}


@pytest.mark.parametrize(
    ("text", "hole", "bad", "good", "code", "line"),
    [
        (TILE, "BARRIER", "", SYNC, "KL207", 8),
        (REDUCER, "BARRIER", "", SYNC, "KL207", 8),
        (HELPER, "UPDATE", "table[at] += by", "atomicAdd(&table[at], by)", "KL219", 1),
        (PAIRS, "GUARD", "", "mate < 512 && ", "KL218", 8),
        (MACRO, "BARRIER", "", SYNC, "KL207", 6),
        (MET, "CALL", "if (i < n) y[i] = all(x[i], parts);", "y[i] = all(x[i], parts);", "KL202", 9),
    ],
    ids=["tile helpers", "static member", "update in a helper", "mate", "macro", "barrier in a helper"],
)
def test_a_fault_is_found_through_other_functions(
    text: str, hole: str, bad: str, good: str, code: str, line: int
) -> None:
    assert (code, line) in found(text.replace(hole, bad))
    assert code not in {each for each, _ in found(text.replace(hole, good))}


def test_a_finding_in_a_helper_moves_with_the_helper() -> None:
    text = HELPER.replace("UPDATE", "table[at] += by")
    assert ("KL219", 1) in found(text)
    assert ("KL219", 3) in found("\n\n" + text)
    head, kernel = text.split("__global__")
    assert ("KL219", 1) in found(f"{head}\n\n\n__global__{kernel}")


def test_a_change_of_a_helper_is_seen_in_its_kernels() -> None:
    assert ("KL207", 8) in found(TILE.replace("BARRIER", ""))
    waiting = TILE.replace("g[d * threadIdx.x]; }", "g[d * threadIdx.x]; __syncthreads(); }").replace("BARRIER", "")
    assert "KL207" not in {code for code, _ in found(waiting)}


OVERLOADS = """__device__ float first(float v) {
    __shared__ float s[256];
    s[threadIdx.x] = v;
    __syncthreads();
    return s[0];
}
__device__ double first(double v) {
    __shared__ double s[256];
    s[threadIdx.x] = v;
    return s[0];
}
__global__ void k(const double* x, double* y) {
    TYPE v = x[threadIdx.x];
    y[threadIdx.x] = first(v);
}
"""
FENCED = """__global__ void k(const float* x, float* y) {
    __shared__ float s[256];
    s[threadIdx.x] = x[threadIdx.x];
    asm volatile("PTX" ::: "memory");
    y[threadIdx.x] = s[255 - threadIdx.x];
}
"""


@pytest.mark.parametrize(("of_type", "codes"), [("double", {"KL207"}), ("float", set())])
def test_a_call_is_of_the_overload_for_its_types(of_type: str, codes: set[str]) -> None:
    assert {code for code, _ in found(OVERLOADS.replace("TYPE", of_type))} & FAULTS == codes


def test_inline_ptx_orders_accesses_only_by_a_barrier() -> None:
    assert ("KL207", 5) in found(FENCED.replace("PTX", "mov.u32 %r1, 0;"))
    assert not {code for code, _ in found(FENCED.replace("PTX", "bar.sync 0;"))} & FAULTS


def test_code_behind_a_preprocessor_condition_is_simulated() -> None:
    text = MACRO.replace("BARRIER", "#ifdef FAST\n    BARRIER\n#endif\n")
    assert ("KL207", 9) in found(text.replace("BARRIER", ""))


def test_a_barrier_in_a_helper_is_inserted_in_the_helper() -> None:
    text = OVERLOADS.replace("TYPE", "double")
    (missing,) = [each for each in cuda.check(text) if each.code == "KL207"]
    assert "s[threadIdx.x] = v;\n    __syncthreads();\n    return s[0];\n}\n__global__" in apply_fix(
        text, missing.fixes[0]
    )


def test_loops_without_a_known_end_and_recursion_end() -> None:
    text = (
        "__device__ int f(int i) { return f(i + 1); }\n"
        "__global__ void k(int* v) { __shared__ int s[64]; while (true) s[f(threadIdx.x)] += v[0]; }\n"
    )
    assert found(text) is not None


RIGHT = {
    "a uniform counter of a loop": """__global__ void rows(const int* ix, const float* x, float* y, int n) {
    __shared__ float s[256];
    int t = threadIdx.x;
    for (int i = 0; i < n; ++i) {
        int j = ix[i];
        if (j < 0) continue;
        s[t] = x[j * 256 + t];
        __syncthreads();
        y[i * 256 + t] = s[255 - t];
        __syncthreads();
    }
}""",
    "a hash of 32 bits": """__global__ void count(unsigned* out) {
    __shared__ unsigned h[256];
    h[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&h[(threadIdx.x * 2654435761u) >> 24], 1u);
    __syncthreads();
    out[threadIdx.x] = h[threadIdx.x];
}""",
    "a byte that wraps around": """__global__ void next(const float* x, float* y) {
    __shared__ float s[256];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[(unsigned char)(threadIdx.x + 1)];
}""",
    "cases of a uniform switch": """__global__ void chosen(const int* ops, float* y) {
    __shared__ float st[256];
    int t = threadIdx.x;
    float v = 0;
    switch (ops[blockIdx.x]) {
        case 0: st[t] = 1; __syncthreads(); v = st[255 - t]; break;
        case 1: st[t] = 2; __syncthreads(); v = st[255 - t]; break;
    }
    y[t] = v;
}""",
    "a barrier before a continue": """__global__ void rows(const float* x, float* y, int n) {
    __shared__ float s[256];
    int t = threadIdx.x;
    for (int i = 0; i < n; ++i) {
        s[t] = x[i * 256 + t];
        __syncthreads();
        float v = s[255 - t];
        __syncthreads();
        if (v < 0) continue;
        y[i * 256 + t] = v;
    }
}""",
    "rows of a cast": """__global__ void copy_rows(const float* x, float* y) {
    __shared__ float memory[1024];
    auto rows = reinterpret_cast<float (*)[512]>(memory);
    for (int e = threadIdx.x; e < 512; e += 256) rows[0][e] = x[blockIdx.x * 512 + e];
    __syncthreads();
    for (int e = threadIdx.x; e < 512; e += 256) {
        float total = rows[0][e];
        rows[1][e] = total;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 512; e += 256) y[blockIdx.x * 512 + e] = rows[1][511 - e];
}""",
    "a double buffer": """__global__ void buffered(const float* a, float* c, int n) {
    __shared__ float tile[2][256];
    int t = threadIdx.x, now = 0;
    float sum = 0;
    tile[0][t] = a[t];
    __syncthreads();
    for (int i = 0; i < n; ++i) {
        int then = now ^ 1;
        if (i + 1 < n) tile[then][t] = a[(i + 1) * 256 + t];
        for (int k = 0; k < 256; ++k) sum += tile[now][k];
        __syncthreads();
        now = then;
    }
    c[t] = sum;
}""",
}
"""Kernels without a fault."""
WITHOUT_END = {
    "numbers that grow at each round": """__global__ void random_counts(unsigned* h) {
    unsigned long long x = threadIdx.x, w = 1, s = 0xb5ad4eceda1ce2a9;
    for (int i = 0; i < 64; ++i) {
        x *= x;
        x += (w += s);
        x = (x >> 32) | (x << 32);
        atomicAdd(&h[x & 255], 1u);
    }
}""",
    "a shared variable without a name": """__global__ void k(float* x) {
 __shared__ float ; float y = x[0]; if (y) __syncthreads();
 x[threadIdx.x] = 1.f;
}""",
}
"""Texts that the rules once did not get through."""
FAULTS = {"KL202", "KL206", "KL207", "KL208", "KL218", "KL219"}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_have_no_finding(name: str) -> None:
    text = RIGHT[name]
    kernel = text.split("void ")[1].split("(")[0]
    launched = text + f"\nvoid run() {{ {kernel}<<<1, 256>>>(); }}\n"
    assert not {finding.code for finding in cuda.check(launched)} & FAULTS


@pytest.mark.parametrize("name", WITHOUT_END)
@pytest.mark.timeout(60)
def test_texts_without_end_have_one(name: str) -> None:
    cuda.check(WITHOUT_END[name])
