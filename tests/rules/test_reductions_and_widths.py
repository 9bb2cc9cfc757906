"""Reductions that lose threads, launches that give too little shared memory, and numbers of more than 32 bits."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda, pytorch
from tests.rules.found_codes import cuda_codes as codes

SUM = """
__device__ float warp_sum(float v) {{
    for (int o = {first}; o > {last}; o >>= 1) v += {shuffle}(0xffffffffu, v, o{width});
    return v;
}}
__global__ void rows(const float* __restrict__ x, float* __restrict__ out, int n) {{
    __shared__ float parts[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * (size_t)n + i];
    sum = warp_sum(sum);
    {use}
}}
void run(const float* x, float* out, int rows_, int n) {{ rows<<<rows_, {block}>>>(x, out, n); }}
"""
OF_ROW = "if (threadIdx.x % 32 == 0) out[blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32] = sum;"
OF_BLOCK = """if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0f;
        for (int o = 4; o > 0; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }"""
OF_GROUP = "if (threadIdx.x % 16 == 0) out[blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16] = sum;"
TO_ALL = """if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < blockDim.x / 32; ++w) total += parts[w];
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i] / total;"""


@pytest.mark.parametrize("shuffle", ["__shfl_down_sync", "__shfl_xor_sync"])
@pytest.mark.parametrize(
    ("first", "last", "use", "block", "is_found"),
    [
        (16, 0, OF_ROW, 128, False),
        (8, 0, OF_ROW, 128, True),
        ("warpSize / 4", 0, OF_ROW, 128, True),
        (16, 1, OF_ROW, 128, True),
        (16, 0, OF_BLOCK, 256, False),
        (16, 0, OF_BLOCK, 512, True),  # eight lanes of sixteen warps
        (8, 0, OF_BLOCK, 256, True),
        (8, 0, OF_GROUP, 128, False),
        (16, 0, TO_ALL, 256, False),
        (8, 0, TO_ALL, 256, True),
    ],
)
def test_a_reduction_has_the_values_of_all_threads(
    shuffle: str, first: int | str, last: int, use: str, block: int, is_found: bool
) -> None:
    text = SUM.format(first=first, last=last, use=use, block=block, shuffle=shuffle, width="")
    assert ("KL273" in codes(text)) is is_found


TREE = """
__global__ void rows(const float* __restrict__ x, float* __restrict__ out) {{
    __shared__ float s[{block}];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * {block} + t];
    __syncthreads();
    for (int k = {first}; k > 0; k {step}) {{
        if ({condition}) s[t] {combine};
        __syncthreads();
    }}
    if (t == 0) out[blockIdx.x] = s[0];
}}
void run(const float* x, float* out, int n) {{ rows<<<n, {block}>>>(x, out); }}
"""


@pytest.mark.parametrize(
    ("block", "first", "step", "condition", "combine", "is_found"),
    [
        (256, "blockDim.x / 2", ">>= 1", "t < k", "+= s[t + k]", False),
        (192, "blockDim.x / 2", ">>= 1", "t < k", "+= s[t + k]", True),
        (192, "128", "/= 2", "t < k && t + k < 192", "+= s[t + k]", False),
        (96, "blockDim.x / 2", "= k / 2", "t < k", "= fmaxf(s[t], s[t + k])", True),
        (256, "64", ">>= 1", "t < k", "+= s[t + k]", True),
    ],
)
def test_a_tree_needs_a_power_of_two(
    block: int, first: str, step: str, condition: str, combine: str, is_found: bool
) -> None:
    text = TREE.format(block=block, first=first, step=step, condition=condition, combine=combine)
    assert ("KL273" in codes(text)) is is_found


@pytest.mark.parametrize(
    "body",
    [
        "float w = v + __shfl_xor_sync(~0u, v, 1); out[t] = w;",  # pairs
        "for (int o = 1; o < 32; o *= 2) { float u = __shfl_up_sync(~0u, v, o); if (t % 32 >= o) v += u; } out[t] = v;",
        "s[t] = v; __syncthreads(); if (t >= 1) out[t] = s[t] - s[t - 1];",
        "s[t] = v; __syncthreads(); for (int i = 0; i < n; ++i) w += s[i]; if (t == 0) out[0] = w;",
        "v = reduced(v); v += __shfl_xor_sync(~0u, v, 1); if (t == 0) out[0] = v;",
    ],
)
def test_scans_stencils_and_what_is_unknown_lose_nothing(body: str) -> None:
    text = (
        "__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {\n"
        f"__shared__ float s[128]; float w = 0.0f; int t = threadIdx.x; float v = x[t]; {body} /* >>= 1 */ }}\n"
        "void run(const float* x, float* out, int n) { k<<<1, 128>>>(x, out, n); }\n"
    )
    assert "KL273" not in codes(text)


CARVED = """
__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {{
    extern __shared__ float all[];
    float* row = all;
    float* parts = all + {offset};
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[i];
    parts[threadIdx.x] = 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = row[i] + parts[0];
}}
void run(const float* x, float* out, int width) {{
    const int threads = 256;
    size_t bytes = {bytes};
    k<<<1, threads, bytes>>>(x, out, width);
}}
"""


@pytest.mark.parametrize(
    ("offset", "n_bytes", "is_found"),
    [
        ("n", "width * sizeof(float)", True),
        ("n", "(width + threads) * sizeof(float)", False),
        ("n", "threads * sizeof(float)", False),  # nothing says how large `width` is
        ("blockDim.x", "threads * sizeof(float)", True),
        ("blockDim.x", "2 * threads * sizeof(float)", False),
        ("blockDim.x", "properties.sharedMemPerBlock", False),
    ],
)
def test_a_launch_gives_the_shared_memory_that_is_accessed(offset: str, n_bytes: str, is_found: bool) -> None:
    found = [each for each in cuda.check(CARVED.format(offset=offset, bytes=n_bytes)) if each.code == "KL233"]
    assert bool(found) is is_found
    assert all(each.range.start_line == 13 for each in found)


INDEX = """
__device__ float at(const float* p, int i) {{ return p[i]; }}
__global__ void k(const float* __restrict__ x, float* __restrict__ out, int64_t n, int64_t d, int m) {{
    int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    if (i < n) {{ {body} }}
}}
"""


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("int j = i * d; out[i] = x[j];", True),
        ("int j = static_cast<int>(i * d + 1); out[i] = x[j];", True),
        ("out[(int)i] = x[i];", True),
        ("out[i] = at(x, i);", True),
        ("for (short j = 0; j < 8; ++j) out[i] += x[j];", False),
        ("for (short j = blockIdx.x * 4; j < m; ++j) out[i] += x[j];", True),
        ("int j = i % d; out[i] = x[j];", False),
        ("int64_t j = i * d; out[i] = x[j];", False),
        ("int j = static_cast<int>(d); out[i] = x[j];", False),
    ],
)
def test_an_index_keeps_its_64_bits(body: str, is_found: bool) -> None:
    assert ("KL274" in codes(INDEX.format(body=body))) is is_found


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("size_t n = rows * cols;", True),
        ("size_t n = static_cast<size_t>(rows) * cols;", False),
        ("size_t n = rows * sizeof(float);", False),
        ("size_t n = rows * cols * sizeof(float);", True),
        ("size_t n = sizeof(float) * rows * cols;", False),
        ("const int b = 1024, s = 65536; long n = b * s * 64;", True),
        ("const int b = 1024, s = 1024; long n = b * s * 64;", False),
        ("int n = rows * cols * sizeof(float); CK(cudaMalloc(&p, n));", True),
        ("int n = rows * sizeof(float); CK(cudaMalloc(&p, n));", False),
    ],
)
def test_a_size_is_computed_in_64_bits(body: str, is_found: bool) -> None:
    assert ("KL275" in codes(f"void run(float* p, int rows, int cols) {{ {body} }}\n")) is is_found


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("v, i = torch.sort(x, descending=True); return v[..., :k], i[..., :k]", True),
        ("return x.argsort(dim=-1, descending=True)[:, :10]", True),
        ("s = torch.sort(x, dim=1); return s.values[:, -k:]", True),
        ("v, i = x.sort(); v, i = v[:k], i[:k]; return v + 1, i", True),
        ("v, i = torch.sort(x, descending=True); return v[:k], i", False),
        ("return torch.sort(x).values[1:-1]", False),
        ("return torch.sort(x).values[:-1]", False),
        ("return torch.sort(x, stable=True).values[:k]", False),
        ("names.sort(); return names[:k]", False),
    ],
)
def test_a_slice_of_a_sort_is_topk(body: str, is_found: bool) -> None:
    lines = "".join(f"    {line.strip()}\n" for line in body.split(";"))
    text = f"import torch\n\ndef f(x: torch.Tensor, k: int, names: list):\n{lines}"
    assert ("KL129" in {found.code for found in pytorch.check(text)}) is is_found


ONE_EACH = """
__global__ void fill(float* __restrict__ out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 1.0f;
}}
void run(float* out, int n, int most) {{
    const int threads = 256;
    {sizes}
    fill<<<blocks, threads>>>(out, n);
}}
"""


@pytest.mark.parametrize(
    ("sizes", "is_found"),
    [
        ("int blocks = (n + threads - 1) / threads;", False),
        ("int blocks = std::min((n + threads - 1) / threads, most);", True),
        ("int blocks = static_cast<int>(std::ceil(n / threads));", True),
        ("int blocks = static_cast<int>(std::ceil(static_cast<float>(n) / threads));", False),
        ("float m = n; int blocks = static_cast<int>(std::ceil(m / threads));", False),
    ],
)
def test_a_grid_covers_its_elements(sizes: str, is_found: bool) -> None:
    assert ("KL256" in codes(ONE_EACH.format(sizes=sizes))) is is_found


@pytest.mark.parametrize(("body", "is_found"), [("sum += v;", True), ("sum = v;", False), ("v += sum;", True)])
def test_a_reference_to_a_variable_without_a_value_is_not_read(body: str, is_found: bool) -> None:
    text = (
        f"__device__ void add(float& sum, float v) {{ {body} }}\n"
        "__global__ void k(float* x) { float sum, other = 0.0f; add(sum, x[threadIdx.x]); \n"
        "x[threadIdx.x] += sum + other; }\n"
    )
    assert ("KL271" in codes(text)) is is_found


def test_a_row_of_a_tile_under_another_name_may_set_it() -> None:
    text = (
        "__global__ void k(float* x) { __shared__ float tile[4][32][33]; float(*mine)[33] = tile[threadIdx.y];\n"
        "mine[0][threadIdx.x] = x[threadIdx.x]; __syncwarp(); x[threadIdx.x] = mine[0][31 - threadIdx.x]; }\n"
    )
    assert "KL248" not in codes(text)


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("total = total + loss / 8", True),
        ("total += loss / 8", True),
        ("total = total + loss.detach() / 8", False),
        ("total = other + loss", False),
    ],
)
def test_a_scaled_loss_keeps_its_graph(statement: str, is_found: bool) -> None:
    text = (
        "import torch\n\ndef f(model, batches, other):\n    total = 0.0\n    for x in batches:\n"
        f"        loss = model(x).mean()\n        loss.backward()\n        {statement}\n    return total\n"
    )
    assert ("KL157" in {found.code for found in pytorch.check(text)}) is is_found


@pytest.mark.parametrize(("call", "is_found"), [("model.encode(x)", True), ("model.to(x)", False)])
def test_a_part_of_an_evaluated_model_records_gradients(call: str, is_found: bool) -> None:
    text = f"import torch\n\ndef f(model, x):\n    model.eval()\n    return {call}\n"
    assert ("KL150" in {found.code for found in pytorch.check(text)}) is is_found


@pytest.mark.parametrize(("size", "is_found"), [(151936, True), (1000, False)])
def test_shifted_logits_are_those_of_the_head(size: int, is_found: bool) -> None:
    text = (
        f"import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\nSIZE = {size}\n\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.head = nn.Linear(1024, SIZE, bias=False)\n\n"
        "def loss_of(model, tokens, labels):\n    scores = model.head(model.body(tokens))\n"
        "    shifted = scores[:, :-1].float()\n"
        "    return F.cross_entropy(shifted.reshape(-1, SIZE), labels[:, 1:].reshape(-1))\n"
    )
    assert ("KL161" in {found.code for found in pytorch.check(text)}) is is_found
