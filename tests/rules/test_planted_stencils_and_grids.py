"""Planted defects of stencils, grids, warps and training loops, each beside correct code of the same form."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda, pytorch
from tests.rules.found_codes import cuda_codes as codes
from tests.rules.found_codes import pytorch_codes as python_codes

IMAGE = (
    "__global__ void f(const float* __restrict__ in, float* __restrict__ out, int w, int h) {{\n"
    "    int x = blockIdx.x * blockDim.x + threadIdx.x;\n    int y = blockIdx.y * blockDim.y + threadIdx.y;\n"
    "    {check}\n    {body}\n}}\n"
)
LEAVE = "if (x >= w || y >= h) return;"
SWEEP = "float s = 0.0f; for (int d = -1; d <= 1; ++d) s += in[y * w + x + d]; out[y * w + x] = s;"
TOTAL = (
    "__global__ void total(const float* __restrict__ v, float* out, int n) {{\n    __shared__ float part[256];\n"
    "    int t = threadIdx.x;\n    float s = 0.0f;\n"
    "    for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) s += v[i];\n"
    "    part[t] = s;\n    __syncthreads();\n    {store}\n}}\n"
)
ROWS = (
    "__global__ void rows(const float* __restrict__ x, float* __restrict__ y, int n) {{\n"
    "    int lane = threadIdx.x % 32;\n    float sum = 0.0f;\n"
    "    for (int c = lane; c < n; c += 32) sum += x[blockIdx.x * n + c];\n"
    "    for (int o = 16; o > 0; o /= 2) sum += {shuffle}(0xffffffffu, sum, o);\n    {use}\n}}\n"
)
WRITE_ALL = "float mean = sum / n; for (int c = lane; c < n; c += 32) y[blockIdx.x * n + c] = mean;"
DEVIATE = "for (int c = lane; c < n; c += 32) q += x[c] - sum;"
HOST = (
    "void run(const float* in, float* out, int width, int height) {{\n    dim3 block(16, 16);\n"
    "    dim3 grid(({x} + 15) / 16, ({y} + 15) / 16);\n    f<<<grid, block>>>(in, out, width, height);\n}}\n"
)


@pytest.mark.parametrize(
    ("check", "body", "is_found"),
    [
        (LEAVE, "out[y * w + x] = in[y * w + x] - in[y * w + x - 1];", True),
        (LEAVE, "out[y * w + x] = in[y * w + x] - in[(y - 1) * w + x];", True),
        (LEAVE, "int at = y * w + x; out[at] = in[at] - in[at - w];", True),
        ("if (x < w && y < h)", "out[y * w + x] = in[y * w + (x - 1)];", True),
        (LEAVE, SWEEP, True),
        (LEAVE, "out[y * w + x] = x > 0 ? in[y * w + x - 1] : 0.0f;", False),
        (LEAVE, "out[y * w + x] = in[y * w + max(x - 1, 0)];", False),
        (LEAVE, "out[y * w + x] = in[y * w + (x + w - 1) % w];", False),
        (LEAVE, "int left = x == 0 ? 0 : x - 1; out[y * w + x] = in[y * w + left];", False),
        (f"{LEAVE} if (x < 1 || y < 1) return;", "out[y * w + x] = in[(y - 1) * w + x - 1];", False),
        (LEAVE, SWEEP.replace("s += in", "if (x + d >= 0 && x + d < w) s += in"), False),
        (LEAVE, "in += w + 1; out[y * w + x] = in[y * w + x - 1];", False),
    ],
)
def test_a_stencil_keeps_away_from_the_border_at_zero(check: str, body: str, is_found: bool) -> None:
    assert ("KL201" in codes(IMAGE.format(check=check, body=body))) is is_found


@pytest.mark.parametrize(
    ("store", "is_found"),
    [
        ("if (t == 0) *out += part[0];", True),
        ("if (t == 0) (*out) += part[0];", True),
        ("if (t == 0) out[0] += part[0];", True),
        ("if (t == 0) atomicAdd(out, part[0]);", False),
        ("if (t == 0) *out = part[0];", False),
        ("if (blockIdx.x == 0 && t == 0) *out += part[0];", False),
    ],
)
def test_blocks_do_not_add_plainly_to_one_element(store: str, is_found: bool) -> None:
    assert ("KL219" in codes(TOTAL.format(store=store))) is is_found


@pytest.mark.parametrize(
    ("shuffle", "use", "is_found"),
    [
        ("__shfl_down_sync", WRITE_ALL, True),
        ("__shfl_down_sync", "float total = 0.0f; total += sum; y[blockIdx.x * 32 + lane] = total;", True),
        ("__shfl_down_sync", f"float q = 0.0f; {DEVIATE} if (lane == 0) y[blockIdx.x] = q;", True),
        ("__shfl_xor_sync", WRITE_ALL, False),
        ("__shfl_down_sync", f"sum = __shfl_sync(0xffffffffu, sum, 0); {WRITE_ALL}", False),
        ("__shfl_down_sync", "if (lane == 0) y[blockIdx.x] = sum / n;", False),
        ("__shfl_down_sync", "float mean = sum / n; if (lane == 0) y[blockIdx.x] = mean;", False),
        ("__shfl_down_sync", "if (lane != 0) return; y[blockIdx.x] = sum;", False),
        ("__shfl_down_sync", "float a = 0.0f; a += sum; if (lane == 0) y[blockIdx.x] = a;", False),
    ],
)
def test_what_lane_0_alone_holds_is_not_used_by_all(shuffle: str, use: str, is_found: bool) -> None:
    assert ("KL249" in codes(ROWS.format(shuffle=shuffle, use=use))) is is_found


def test_steps_of_groups_of_lanes_inside_another_loop_are_no_reduction_of_the_loop() -> None:
    use = "for (int k = 0; k < 4; k++) { float v = x[k]; v += __shfl_down_sync(0xffffffffu, v, 1, 4); y[k] = v; }"
    assert "KL249" not in codes(ROWS.format(shuffle="__shfl_xor_sync", use=use))


@pytest.mark.parametrize(("x", "y", "is_found"), [("height", "width", True), ("width", "height", False)])
def test_the_axes_of_a_grid_are_those_of_the_kernel(x: str, y: str, is_found: bool) -> None:
    kernel = IMAGE.format(check="if (x < w && y < h)", body="out[y * w + x] = in[y * w + x];")
    found = [finding.message for finding in cuda.check(kernel + HOST.format(x=x, y=y)) if finding.code == "KL256"]
    assert [message.startswith("grid axes are swapped") for message in found] == [True] * is_found


@pytest.mark.parametrize(
    ("index", "is_found"), [("s[threadIdx.x + 1]", True), ("s[threadIdx.x]", False), ("s[threadIdx.x + 2]", True)]
)
def test_a_check_of_the_next_element_does_not_give_a_block_one_more(index: str, is_found: bool) -> None:
    text = (
        "#define BLOCK 256\n__global__ void diff(const float* __restrict__ x, float* __restrict__ y, int n) {\n"
        "    __shared__ float s[BLOCK];\n    int i = blockIdx.x * BLOCK + threadIdx.x;\n"
        "    s[threadIdx.x] = i < n ? x[i] : 0.0f;\n    __syncthreads();\n"
        f"    if (i + 1 < n) y[i] = {index};\n}}\n"
    )
    assert ("KL218" in codes(text)) is is_found


@pytest.mark.parametrize(
    ("value", "is_found"), [("rows * cols", True), ("(int)(rows * cols)", False), ("cols * 2", False)]
)
def test_a_product_of_sizes_is_not_kept_in_an_int(value: str, is_found: bool) -> None:
    text = f"__global__ void f(float* v, size_t rows, int cols) {{\n    int n = {value};\n    v[threadIdx.x] = n;\n}}\n"
    assert ("KL274" in codes(text)) is is_found


LOADER = (
    "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n\ndef train(data, model):\n"
    "    loader = DataLoader({given})\n    for x, y in {iterated}:\n"
    "        model(x.to('cuda'), y.to('cuda')).backward()\n"
)


@pytest.mark.parametrize(
    ("given", "iterated", "is_found"),
    [
        ("data, batch_size=8", "loader", True),
        ("data, batch_size=8", "enumerate(loader)", True),
        ("data, num_workers=2", "loader", False),
        ("TensorDataset(data), batch_size=8", "loader", False),
        ("data, **options", "loader", False),
        ("data, batch_size=8", "other", False),
    ],
)
def test_a_training_loop_has_its_batches_loaded_ahead(given: str, iterated: str, is_found: bool) -> None:
    assert ("KL165" in python_codes(LOADER.format(given=given, iterated=iterated))) is is_found


STEP = (
    "import torch\n\nclass Sgd{bases}:\n    @torch.no_grad()\n    def step(self):\n"
    "        for p in self.params:\n            p.add_(p.grad, alpha=-self.lr)\n"
)


@pytest.mark.parametrize(("bases", "instead"), [("", "torch.optim"), ("(torch.optim.Optimizer)", "_foreach_")])
def test_an_optimizer_by_hand_is_told_what_updates_all_at_once(bases: str, instead: str) -> None:
    messages = [found.message for found in pytorch.check(STEP.format(bases=bases)) if found.code == "KL162"]
    assert len(messages) == 1
    assert instead in messages[0]


NET = (
    "import torch\nfrom torch import nn\n\ndevice = 'cuda'\n"
    "net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).to({given})\n\n"
    "def step(x):\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n        return net(x)\n"
)


@pytest.mark.parametrize(
    ("given", "is_found"), [("device", True), ("device, memory_format=torch.channels_last", False)]
)
def test_a_convolution_net_under_autocast_wants_channels_last(given: str, is_found: bool) -> None:
    assert ("KL163" in python_codes(NET.format(given=given))) is is_found


@pytest.mark.parametrize(("place", "is_found"), [("device=x.device", True), ("device='cpu'", False)])
def test_a_parameter_with_a_shape_and_a_device_is_a_tensor(place: str, is_found: bool) -> None:
    text = (
        f"import torch\n\ndef pairs(x, y):\n    out = torch.zeros(x.shape[0], {place})\n"
        "    for i in range(x.shape[0]):\n        out[i] = (x[i] - y[i]).sum()\n    return out\n"
    )
    assert ("KL107" in python_codes(text)) is is_found


TWICE = (
    "__global__ void f(const float* __restrict__ x, float* __restrict__ y, int n) {{\n    __shared__ float red[256];\n"
    "    int t = threadIdx.x;\n    red[t] = x[t];\n    __syncthreads();\n    float m = red[{read}];\n    {between}\n"
    "    red[t] = m * x[t];\n    __syncthreads();\n    y[t] = red[0];\n}}\n"
)


@pytest.mark.parametrize(
    ("read", "between", "is_found"),
    [("0", "", True), ("0", "m += 1.0f;", True), ("0", "__syncthreads();", False), ("t", "", False)],
)
def test_what_all_threads_read_is_not_overwritten_without_a_barrier(read: str, between: str, is_found: bool) -> None:
    assert ("KL207" in codes(TWICE.format(read=read, between=between))) is is_found


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("if (i < n && x[i] > *best) *best = x[i];", True),
        ("if (i < n) if (x[i] > best[0]) best[0] = x[i];", True),
        ("if (i == 0 && x[i] > *best) *best = x[i];", False),
        ("if (i < n && x[i] > best[i]) best[i] = x[i];", False),
    ],
)
def test_an_extreme_is_not_compared_and_set_by_all_threads(body: str, is_found: bool) -> None:
    index = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
    text = f"__global__ void f(const float* __restrict__ x, float* best, int n) {{\n    {index}\n    {body}\n}}\n"
    assert ("KL219" in codes(text)) is is_found


@pytest.mark.parametrize(("value", "is_found"), [("1", True), ("0", False), ("0xff", False), ("1.0f", True)])
def test_cudamemset_is_not_given_the_value_of_an_element(value: str, is_found: bool) -> None:
    text = f"cudaError_t f(float* x, int n) {{ return cudaMemset(x, {value}, n * sizeof(float)); }}\n"
    assert ("KL254" in codes(text)) is is_found


@pytest.mark.parametrize(
    ("step", "end", "is_found"),
    [("blockDim.x", "n", True), ("blockDim.x * gridDim.x", "n", False), ("blockDim.x", "last", False)],
)
def test_a_loop_across_the_grid_steps_by_the_grid(step: str, end: str, is_found: bool) -> None:
    text = (
        "__global__ void f(float* x, int n, int chunk) {\n    int last = (blockIdx.x + 1) * chunk;\n"
        f"    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < {end}; i += {step}) x[i] = 1.0f;\n}}\n"
    )
    assert ("KL257" in codes(text)) is is_found


@pytest.mark.parametrize(
    ("made", "is_found"),
    [
        ("std::vector<float> x(256);", True),
        ("thrust::device_vector<float> x(256);", False),
        ("Buffer x(256);", False),
    ],
)
def test_a_kernel_is_not_given_data_of_a_vector(made: str, is_found: bool) -> None:
    text = f"__global__ void f(float* x) {{ x[threadIdx.x] = 0.0f; }}\nvoid g() {{ {made} f<<<1, 256>>>(x.data()); }}\n"
    assert ("KL258" in codes(text)) is is_found


@pytest.mark.parametrize(("wait", "is_found"), [("", True), ("check(cudaStreamSynchronize(0));", False)])
def test_managed_memory_is_read_after_a_wait(wait: str, is_found: bool) -> None:
    text = (
        "__global__ void f(float* x) { x[threadIdx.x] = 0.0f; }\n"
        f"float g() {{ float* x; check(cudaMallocManaged(&x, 1024)); f<<<1, 256>>>(x); {wait} return x[1]; }}\n"
    )
    assert ("KL259" in codes(text)) is is_found


@pytest.mark.parametrize(("between", "is_found"), [("", True), ("__syncthreads();", False)])
def test_a_counter_is_set_before_others_add_to_it(between: str, is_found: bool) -> None:
    text = (
        "__global__ void f(const float* __restrict__ x, int* out) {\n    __shared__ int n;\n"
        f"    if (threadIdx.x == 0) n = 0;\n    {between}\n    if (x[threadIdx.x] > 0.0f) atomicAdd(&n, 1);\n"
        "    __syncthreads();\n    if (threadIdx.x == 0) out[0] = n;\n}\n"
    )
    assert ("KL207" in codes(text)) is is_found


@pytest.mark.parametrize(("blocks", "is_found"), [("(N + 127) / 128", True), ("N / 125", False)])
def test_a_kernel_on_one_line_is_compared_with_its_launch(blocks: str, is_found: bool) -> None:
    text = (
        "#define N 1000\n"
        "__global__ void sq(float* v) { int i = blockIdx.x * blockDim.x + threadIdx.x; v[i] *= v[i]; }\n"
        "int f() {\n    float* v;\n    if (cudaMalloc((void**)&v, N * sizeof(float))) return 1;\n"
        f"    sq<<<{blocks}, {128 if is_found else 125}>>>(v);\n    return cudaDeviceSynchronize();\n}}\n"
    )
    assert ("KL256" in codes(text)) is is_found
