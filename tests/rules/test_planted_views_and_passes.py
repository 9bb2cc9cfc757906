"""Planted defects of kernels that take structures, of launches of several sizes, and of loops over passes, each beside
correct code of the same form."""

from __future__ import annotations

import pytest

from tests.rules.found_codes import cuda_codes as codes
from tests.rules.found_codes import pytorch_codes as python_codes

VIEW = (
    "template <typename T> struct View {{\n    T* data;\n    int rows;\n    int cols;\n"
    "    __device__ T& at(int r, int c) const {{ return data[(long long)r * cols + c]; }}\n"
    "    __device__ T& operator()(int r, int c) const {{ return data[r * cols + c]; }}\n}};\n"
    "__global__ void relu(View<float> m, View<float> out) {{\n"
    "    int x = blockIdx.x * blockDim.x + threadIdx.x;\n    int y = blockIdx.y * blockDim.y + threadIdx.y;\n"
    "    {check}\n    {body}\n}}\n"
    "void run(View<float> m, View<float> out, dim3 grid) {{ relu<<<grid, dim3(32, 8)>>>(m, out); }}\n"
)
CHECKED = "if (x >= m.cols || y >= m.rows) return;"
TURNED = "if (x >= m.rows || y >= m.cols) return;"


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("out.at(x, y) = fmaxf(m.at(x, y), 0.0f);", True),
        ("out(x, y) = fmaxf(m(x, y), 0.0f);", True),
        ("out.data[x * m.cols + y] = fmaxf(m.data[x * m.cols + y], 0.0f);", True),
        ("out.at(y, x) = fmaxf(m.at(y, x), 0.0f);", False),
        ("out(y, x) = fmaxf(m(y, x), 0.0f);", False),
        ("out.data[y * m.cols + x] = fmaxf(m.data[y * m.cols + x], 0.0f);", False),
    ],
)
def test_structures_are_followed_to_strides(body: str, is_found: bool) -> None:
    text = VIEW.format(check=TURNED if is_found else CHECKED, body=body)
    lines = [line for line in text.splitlines(keepends=True) if "return data" not in line or "data[" not in body]
    assert ("KL210" in codes("".join(lines))) is is_found


@pytest.mark.parametrize(
    ("parameter", "array", "check", "is_found"),
    [
        ("Image image", "image.pixels", "", True),
        ("const Image* __restrict__ image", "image->pixels", "", True),
        ("const __grid_constant__ Image image", "image.pixels", "", True),
        ("Image image", "image.pixels", "if (x < image.width && y < image.height)", False),
        ("Image image", "image.pixels", "if (!inside(image, x, y)) return;", False),
        ("Tile image", "image.pixels", "", False),
        ("Seeded image", "image.pixels", "", False),
        ("Fixed image", "image.pixels", "", False),
    ],
    ids=["value", "pointer", "constant", "checked", "function", "no-size", "seed", "fixed"],
)
def test_arrays_of_structures_are_checked(parameter: str, array: str, check: str, is_found: bool) -> None:
    text = (
        "struct Image { float* pixels; int width; int height; };\nstruct Tile { float* pixels; float scale; };\n"
        "struct Seeded { float* pixels; int seed; };\n"
        "struct Fixed { float* pixels; static constexpr int size = 4096; };\n"
        "__device__ bool inside(const Image& image, int x, int y) { return x < image.width && y < image.height; }\n"
        f"__global__ void blend({parameter}, float opacity) {{\n"
        "    int x = blockIdx.x * blockDim.x + threadIdx.x;\n    int y = blockIdx.y * blockDim.y + threadIdx.y;\n"
        f"    const int i = y * 1920 + x;\n    {check} {array}[i] *= opacity;\n}}\n"
    )
    assert ("KL201" in codes(text)) is is_found


@pytest.mark.parametrize(
    ("size", "is_found"),
    [
        ("const int64_t total = rows * dim; if (i >= total) return;", True),
        ("if (i >= rows * dim) return;", True),
        ("const size_t total = (size_t)n * m; if (i >= total) return;", True),
        ("if (i >= p.total) return;", True),
        ("const int64_t total = n * m; if (i >= total) return;", False),
        ("const int64_t first = 64; if (i >= first) return;", False),
        ("const int64_t quads = rows / 4; if (i >= quads) return;", False),
        ("if (i >= p.count) return;", False),
    ],
)
@pytest.mark.parametrize(
    "loop",
    [
        "int i = blockIdx.x * blockDim.x + threadIdx.x; {}",
        "unsigned i = blockIdx.x * 256 + threadIdx.x; {}",
        "{}",
    ],
)
def test_wide_sizes_are_known_by_their_parts(size: str, loop: str, is_found: bool) -> None:
    if loop == "{}":
        size = size.replace("if (i >= ", "for (int i = threadIdx.x; i < ").replace(") return;", "; i += blockDim.x)")
    text = (
        "struct P { int64_t total; int count; };\n"
        "__global__ void f(float* x, int64_t rows, int64_t dim, int n, int m, P p) {\n    "
        + loop.format(size)
        + " x[i] = 0.0f;\n}\n"
    )
    assert ("KL216" in codes(text)) is is_found


@pytest.mark.parametrize(
    ("host", "is_found"),
    [
        ("f<<<(h * w + 255) / 256, 256>>>(x, c * h * w);", True),
        ("const int n = c * h * w; const int blocks = (h * w + 256 - 1) / 256; f<<<blocks, 256>>>(x, n);", True),
        ("int threads = 128; f<<<ceil_div(h, threads), threads>>>(x, h * w);", True),
        ("dim3 block(256); dim3 grid((w + block.x - 1) / block.x); f<<<grid, block>>>(x, h * w);", True),
        ("f<<<4, 256>>>(x, 2000);", True),
        ("f<<<8, 256>>>(x, 2000);", False),
        ("f<<<(c * h * w + 255) / 256, 256>>>(x, c * h * w);", False),
        ("const int n = w * c * h; f<<<(c * (h * w) + 255) / 256, 256>>>(x, n);", False),
        ("const int plane = h * w; f<<<(plane + 255) / 256, 256>>>(x, plane);", False),
        ("for (int k = 0; k < c; ++k) f<<<(h * w + 255) / 256, 256>>>(x, c * h * w);", False),
        ("f<<<(h * w + 255) / 256, 256>>>(x + h * w, c * h * w);", False),
        ("f<<<(h * w + 63) / 64, 256>>>(x, c * h * w);", False),
        ("strided<<<(h * w + 255) / 256, 256>>>(x, c * h * w);", False),
        ("steps<<<(h * w + 255) / 256, 256>>>(x, c * h * w);", False),
        ("fours<<<(h * w + 255) / 256, 256>>>(x, 4 * h * w);", False),
        ("planes<<<dim3((h * w + 255) / 256, c), 256>>>(x, c * h * w);", False),
    ],
)
def test_grids_of_a_part_are_found(host: str, is_found: bool) -> None:
    index = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
    text = (
        "int ceil_div(int a, int b) { return (a + b - 1) / b; }\n"
        f"__global__ void f(float* x, int n) {{\n    {index}\n    if (i < n) x[i] = 0.0f;\n}}\n"
        f"__global__ void strided(float* x, int n) {{\n    {index}\n"
        "    for (; i < n; i += gridDim.x * blockDim.x) x[i] = 0.0f;\n}\n"
        f"__global__ void steps(float* x, int n) {{\n    {index}\n    int step = 1 << 20;\n"
        "    if (i < n) x[i] = 0.0f;\n    if (i + step < n) x[i + step] = 0.0f;\n}\n"
        f"__global__ void fours(float* x, int n) {{\n    {index}\n"
        "    if (4 * i < n) reinterpret_cast<float4*>(x)[i] = make_float4(0, 0, 0, 0);\n}\n"
        f"__global__ void planes(float* x, int n) {{\n    {index}\n    i += blockIdx.y * 4096;\n"
        "    if (i < n) x[i] = 0.0f;\n}\n"
        f"void run(float* x, int c, int h, int w) {{\n    {host}\n}}\n"
    )
    assert ("KL256" in codes(text)) is is_found


PASSES = (
    "import torch\nimport torch.nn.functional as F\n\n"
    "@torch.inference_mode()\ndef predict(model, models, x: torch.Tensor, n, device):\n"
    "    mean = 0\n{body}\n    return mean\n"
)


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("    for _ in range(n):\n        mean = mean + model(x.to(device))", True),
        ("    for each in models:\n        with torch.autocast('cuda'):\n            mean += each(x.cuda())", True),
        ("    for _ in range(n):\n        batch = x.to(device, non_blocking=True)\n        mean += model(batch)", True),
        ("    mean = torch.stack([each(x.to('cuda')) for each in models]).mean(0)", True),
        ("    x = x.to(device)\n    for _ in range(n):\n        mean += model(x)", False),
        ("    x = x.to(device)\n    for _ in range(n):\n        mean += model(x.to(device))", False),
        ("    for x in models:\n        mean += model(x.to(device))", False),
        ("    for each in models:\n        mean += each(x.to(each.device))", False),
        ("    for device in models:\n        mean += model(x.to(device))", False),
        ("    for _ in range(n):\n        x = x.roll(1)\n        mean += model(x.to(device))", False),
        ("    for _ in range(n):\n        x.normal_()\n        mean += model(x.to(device))", False),
        ("    for _ in range(n):\n        models.fill(x)\n        mean += model(x.to(device))", False),
        ("    for i in range(n):\n        if i == 0:\n            mean = model(x.to(device))", False),
        ("    for _ in range(n):\n        mean += x.to('cpu')", False),
        ("    for _ in range(n):\n        try:\n            return model(x.to(device))\n        except RuntimeError:\n"
         "            pass", False),
        ("    for _ in range(n):\n        mean += x.to(torch.float64).sum()", False),
        ("    a = x.numpy()\n    for i in range(n):\n        a[i] = 0\n        mean += model(x.to(device))", False),
        ("    for _ in range(n):\n        a = x.to(device)\n        a += 1\n        mean += model(a)", False),
        ("    for _ in range(n):\n        a = x.to(device)\n        a.mul_(2)\n        mean += model(a)", False),
        ("    for _ in range(n):\n        a = x.to(device)\n        a[0] = 0\n        mean += model(a)", False),
        ("    for _ in range(n):\n        moved = model.to(device)\n        mean += moved(x)", False),
    ],
)  # fmt: skip
def test_copies_of_one_tensor_in_a_loop_are_found(body: str, is_found: bool) -> None:
    assert ("KL176" in python_codes(PASSES.format(body=body))) is is_found


CLOUDS = (
    "import torch\nfrom torch import nn\n\n\ndef knn(points, k):\n{body}\n\n"
    "class Edge(nn.Module):\n    def forward(self, x):\n        return knn({given}, 8)\n"
)
APPENDED = (
    "    out = []\n    for cloud in points:\n        out.append(torch.cdist(cloud, cloud).topk(k).indices)\n"
    "    return torch.stack(out)\n"
)
COUNTED = (
    "    out = []\n    for b in range(points.shape[0]):\n        out.append(torch.cdist(points[b], points[b]))\n"
    "    return torch.stack(out)\n"
)
LISTED = "    return torch.stack([torch.linalg.norm(cloud) for cloud in points])\n"


@pytest.mark.parametrize(
    ("body", "given", "is_found"),
    [
        (APPENDED, "x.detach().float()", True),
        (COUNTED, "x.contiguous()", True),
        (COUNTED.replace("points.shape[0]", "len(points)"), "x.contiguous()", True),
        (LISTED, "x.contiguous()", True),
        (APPENDED, "[each.float() for each in x]", False),
        (APPENDED, "self.clouds", False),
        (APPENDED.replace("torch.cdist(cloud, cloud)", "self.search(cloud)"), "x.detach().float()", False),
        ("    return torch.cdist(points, points).topk(k).indices\n", "x.detach().float()", False),
    ],
)
def test_loops_over_what_a_forward_gives_are_found(body: str, given: str, is_found: bool) -> None:
    assert ("KL107" in python_codes(CLOUDS.format(body=body, given=given))) is is_found


GATED = (
    "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\nclass Gated(nn.Module):\n"
    "    def __init__(self, d):\n        super().__init__()\n        self.gate = nn.Linear(d, d)\n"
    "        self.up = nn.Linear(d, d)\n        self.down = nn.Linear(d, d)\n\n"
    "    def forward(self, x):\n        g = F.silu(self.gate(x))\n        u = self.up(x)\n        return {body}\n\n\n"
    "def step(model, x):\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n        return model(x).mean()\n"
)


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("self.down((g * u).float())", True),
        ("self.down(F.silu(self.gate(x)).float())", True),
        ("self.down((g * u).to(torch.float32))", True),
        ("self.down(u.to(dtype=torch.float))", True),
        ("self.down(g * u)", False),
        ("torch.exp((g * u).float())", False),
        ("self.down((g > u).float())", False),
        ("self.down(F.one_hot(g.argmax(-1), 8).float())", False),
        ("self.down(x.float())", False),
        ("self.down((g * u).to(x.device))", False),
    ],
)
def test_casts_to_f32_before_layers_are_found(body: str, is_found: bool) -> None:
    assert ("KL164" in python_codes(GATED.format(body=body))) is is_found
