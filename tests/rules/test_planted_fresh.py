"""Planted defects that rules once missed, each beside correct code of the same form."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda
from tests.rules.found_codes import cuda_codes
from tests.rules.found_codes import pytorch_codes as codes

INDEX = "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
SWAP = "{ float a = v[i]; v[i] = v[i + 1]; v[i + 1] = a; }"
TOTAL = "__device__ float total;\n"
ADDS = "__global__ void add(const float* __restrict__ x, float* __restrict__ o, int n) {\n" + INDEX
ADDS_LAST = "    if (i < n) atomicAdd(&total, x[i]);\n    if (i == n) *o = total;\n"
NET = (
    "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def __init__(self, d):\n"
    "        super().__init__()\n"
    "        self.head = nn.Linear(d, d)\n        self.net = nn.Sequential(nn.Linear(d, d), nn.Softmax(dim=-1))\n"
    "        self.act = nn.Softmax(dim=-1)\n\n    def forward(self, x):\n        return {result}\n\n"
)
TRAIN = (
    "def train(model, batches):\n    criterion = nn.CrossEntropyLoss()\n    for x, y in batches:\n"
    "        {loss}.backward()\n"
)


def sort(body: str, index: str = INDEX, host: str = "") -> str:
    return f"__global__ void sort(float* __restrict__ v, int n, int phase) {{\n{index}    {body}\n}}\n{host}"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (sort(f"if (i < n) {SWAP}"), True),
        (sort(f"if (i >= n) return;\n    {SWAP}"), True),
        (sort(f"if (i < n) {SWAP}", "    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + phase;\n"), True),
        (sort(f"if (i + 1 < n) {SWAP}"), False),
        (sort(f"if (i < n && i + 1 < n) {SWAP}"), False),
        (sort(f"if (i < n - 1) {SWAP}"), False),
        (sort(f"if (i < n) {SWAP}", "    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);\n"), False),
        (sort("if (i < n) { float a = i + 1 < n ? v[i + 1] : 0.0f; v[i] = v[i] + a; }"), False),
        (sort(f"if (i < n) {SWAP}", host="void run(float* v, int n) { sort<<<n, 256>>>(v, n - 1, 0); }\n"), False),
        (
            "__global__ void rows(const int* __restrict__ start, float* __restrict__ out, int n) {\n"
            f"{INDEX}    if (i < n) out[i] = start[i + 1] - start[i];\n}}\n",
            False,
        ),
    ],
)
def test_a_neighbour_beyond_the_checked_index_is_out_of_bounds(text: str, is_found: bool) -> None:
    assert ("KL201" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("store", "is_found"),
    [
        ("b[tr * rows + tc] = tile[threadIdx.x][threadIdx.y];", True),
        ("if (tr < cols && tc < rows) b[tr * rows + tc] = tile[threadIdx.x][threadIdx.y];", False),
        ("b[blockIdx.x * rows + threadIdx.x] = tile[0][threadIdx.x];", False),
    ],
)
def test_coordinates_are_checked_where_others_are(store: str, is_found: bool) -> None:
    text = (
        "__global__ void t(const float* __restrict__ a, float* __restrict__ b, int rows, int cols) {\n"
        "    __shared__ float tile[32][33];\n"
        "    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;\n"
        "    if (r < rows && c < cols) tile[threadIdx.y][threadIdx.x] = a[r * cols + c];\n    __syncthreads();\n"
        "    int tr = blockIdx.x * 32 + threadIdx.y, tc = blockIdx.y * 32 + threadIdx.x;\n"
        f"    {store}\n}}\n"
    )
    assert ("KL201" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("int k = (t + 1) * d * 2 - 1;\n        if (k < 256) s[k] += s[k - d];", True),
        ("int k = 2 * d * t;\n        if (k + d < 256) s[k] += s[k + d];", True),
        ("if (t < 128 / d) s[t * 2 * d] += s[t * 2 * d + d];", True),
        ("__syncthreads();\n        int k = (t + 1) * d * 2 - 1;\n        if (k < 256) s[k] += s[k - d];", False),
        ("int k = t * 8 + d;\n        s[k] += s[k - 1];", False),
        ("int k = t * n + d;\n        s[k] += s[k - 1];", False),
    ],
)
def test_steps_of_a_tree_need_a_barrier(body: str, is_found: bool) -> None:
    text = (
        "__global__ void scan(const float* __restrict__ x, float* __restrict__ y, int n) {\n"
        "    __shared__ float s[256];\n"
        f"    int t = threadIdx.x;\n    s[t] = x[t];\n    __syncthreads();\n"
        f"    for (int d = 1; d < 256; d *= 2) {{\n        {body}\n"
        "    }\n    __syncthreads();\n    y[t] = s[t];\n}\n"
    )
    assert ("KL208" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("value", "is_found"),
    [
        ("ids[r] * cols", True),
        ("cols * ids[r] + threadIdx.x", True),
        ("(int64_t)ids[r] * cols", False),
        ("wide[r] * cols", False),
        ("ids[r]", False),
    ],
)
def test_products_of_loaded_indices_are_widened_first(value: str, is_found: bool) -> None:
    text = (
        "__global__ void gather(const float* __restrict__ x, const int* ids, const int64_t* wide,\n"
        "                       float* __restrict__ out, int cols) {\n    int r = blockIdx.x;\n"
        f"    int64_t at = {value};\n    out[r] = x[at];\n}}\n"
    )
    assert ("KL215" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (f"{TOTAL}{ADDS}{ADDS_LAST}}}\n", True),
        (f"{TOTAL}{ADDS}{ADDS_LAST}    if (i == n) total = 0.0f;\n}}\n", False),
        (f"{TOTAL}{ADDS}{ADDS_LAST}}}\nvoid zero() {{ float z = 0; cudaMemcpyToSymbol(total, &z, 4); }}\n", False),
        (f"{TOTAL}{ADDS}{ADDS_LAST}}}\nint main() {{ add<<<1, 32>>>(0, 0, 0); }}\n", False),
        (f"{TOTAL}__global__ void get(float* out) {{ *out = total; }}\n", False),
        (
            "__device__ unsigned n_done;\n__global__ void k(float* out) {\n"
            "    if (atomicInc(&n_done, gridDim.x - 1) == gridDim.x - 1) *out = 1.0f;\n}\n",
            False,
        ),
    ],
)
def test_totals_of_the_device_are_reset(text: str, is_found: bool) -> None:
    assert ("KL247" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("head", "is_found"),
    [
        ("int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;", True),
        ("int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32;\n    if (i >= n) return;", False),
        ("int i = blockIdx.x;\n    if (i >= n) return;", False),
        ("int i = blockIdx.x * blockDim.x + threadIdx.x;", False),
    ],
)
def test_lanes_that_have_returned_take_no_part(head: str, is_found: bool) -> None:
    text = (
        "__global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {\n"
        f"    {head}\n    float m = i < n ? x[i] : 0.0f;\n    m += __shfl_xor_sync(0xffffffffu, m, 1);\n"
        "    if ((threadIdx.x & 31) == 0) y[i] = m;\n}\n"
    )
    assert ("KL206" in cuda_codes(text)) is is_found


def test_a_cast_size_of_a_container_counts_no_bytes() -> None:
    text = (
        "#include <vector>\nvoid up(const std::vector<float>& v, float* d) {\n    int n = (int)v.size();\n"
        "    cudaMemcpy(d, v.data(), n, cudaMemcpyHostToDevice);\n}\n"
    )
    assert "KL254" in cuda_codes(text)


@pytest.mark.parametrize(
    ("result", "loss", "is_found"),
    [
        ("torch.softmax(self.head(x), dim=-1)", "criterion(model(x), y)", True),
        ("self.head(x).softmax(-1)", "criterion(model(x), y)", True),
        ("self.act(self.head(x))", "criterion(model(x), y)", True),
        ("self.net(x)", "criterion(model(x), y)", True),
        ("self.head(x)", "criterion(torch.softmax(model(x), 1), y)", True),
        ("self.head(x)", "criterion(model(x), y)", False),
        ("self.head(x) if self.training else self.act(self.head(x))", "criterion(model(x), y)", False),
        ("self.act(self.head(x))", "nn.functional.nll_loss(model(x).log(), y)", False),
        ("self.act(self.head(x)) @ x", "criterion(model(x), y)", False),
    ],
)
def test_a_model_that_ends_with_a_softmax_gives_no_logits(result: str, loss: str, is_found: bool) -> None:
    text = NET.format(result=result) + TRAIN.format(loss=loss)
    assert ("KL140" in codes(text)) is is_found


def test_the_loss_of_another_model_is_unknown() -> None:
    other = "class Other(nn.Module):\n    def forward(self, x):\n        return x\n\n"
    text = NET.format(result="self.net(x)") + other + TRAIN.format(loss="criterion(model(x), y)")
    assert "KL140" not in codes(text)
    assert "KL140" in codes(
        text.replace("    criterion =", "    model = Net(3)\n    criterion =").replace("(model, b", "(b")
    )


def test_modules_at_the_top_of_a_script_are_known() -> None:
    made = "model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(1))\ncriterion = nn.CrossEntropyLoss()\n"
    text = f"import torch\nfrom torch import nn\n{made}def step(x, y):\n    return criterion(model(x), y)\n"
    assert "KL140" in codes(text)
    assert "KL140" not in codes(text.replace(", nn.Softmax(1)", ""))


@pytest.mark.parametrize(
    ("body", "code", "is_found"),
    [
        ("total += (model(x).argmax(1) == y).sum().item()", "KL105", True),
        ("total += (model(x).argmax(1) == y).float().mean().item()", "KL105", True),
        ("total += (model(x).argmax(1) == y).sum()", "KL105", False),
        ("model(x).sum().backward()\n        torch.cuda.empty_cache()", "KL108", True),
        ("model(x)\n        torch.cuda.empty_cache()", "KL108", False),
        (
            "model(x).sum().backward()\n        if total % 100 == 0:\n            torch.cuda.empty_cache()",
            "KL108",
            False,
        ),
    ],
)
def test_waits_in_each_step_are_found(body: str, code: str, is_found: bool) -> None:
    text = f"import torch\n\ndef run(model, batches):\n    total = 0\n    for x, y in batches:\n        {body}\n"
    "    return total\n"
    assert (code in codes(text)) is is_found


def test_a_mask_that_is_asked_for_any_is_one() -> None:
    text = (
        "import torch\n\nclass M(torch.nn.Module):\n    def forward(self, x, mask):\n        if mask.any():\n"
        "            x = x[mask]\n        return x.pow(2).sum()\n"
    )
    assert {"KL102", "KL106"} <= codes(text)


HISTOGRAM = "__global__ void k(const unsigned char* __restrict__ v, int* __restrict__ bins, int n) {\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("atomicAdd(&local[v[threadIdx.x]], 1);\n    __syncthreads();\n    n += local[0];", True),
        ("local[threadIdx.x] += v[threadIdx.x];", True),
        ("local[threadIdx.x] = 0;\n    __syncthreads();\n    atomicAdd(&local[v[threadIdx.x]], 1);", False),
        ("fill(local, 0);\n    atomicAdd(&local[v[threadIdx.x]], 1);", False),
        ("int* p = local;\n    p[threadIdx.x] = 0;\n    atomicAdd(&local[v[threadIdx.x]], 1);", False),
        ("int& one = local[threadIdx.x];\n    one = 0;\n    atomicAdd(&local[v[threadIdx.x]], 1);", False),
    ],
)
def test_shared_memory_that_nothing_sets_is_found(body: str, found: bool) -> None:
    after = "atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);  // local"
    text = f"{HISTOGRAM}    __shared__ int local[256];  // local\n    {body}\n    {after}\n}}\n"
    assert ("KL248" in cuda_codes(text)) is found


@pytest.mark.parametrize(
    ("update", "found"),
    [
        ("bins[threadIdx.x] += s;", True),
        ("if (threadIdx.x < n) bins[threadIdx.x] += s;", True),
        ("for (int b = threadIdx.x; b < n; b += blockDim.x) bins[b] += s;", True),
        ("bins[blockIdx.x] += s;", False),
        ("if (blockIdx.x == 0) bins[threadIdx.x] += s;", False),
        ("if (is_last) bins[threadIdx.x] += s;", False),
        ("if (v[0] == 1) bins[threadIdx.x] += s;", False),
        ("atomicAdd(&bins[threadIdx.x], s);", False),
    ],
)
def test_blocks_that_update_the_same_elements_race(update: str, found: bool) -> None:
    body = f"__shared__ bool is_last;\n    int s = v[blockIdx.x * blockDim.x + threadIdx.x];\n    {update}"
    text = f"{HISTOGRAM}    {body}\n}}\n"
    assert any("each block of the grid" in each.message for each in cuda.check(text)) is found
