"""Planted defects of kernels that take structures and of launches of several sizes, each beside correct code of the
same form."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda

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


def codes(text: str) -> set[str]:
    return {finding.code for finding in cuda.check(text)}


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
    ],
    ids=["value", "pointer", "constant", "checked", "function", "no-size", "seed"],
)
def test_arrays_of_structures_are_checked(parameter: str, array: str, check: str, is_found: bool) -> None:
    text = (
        "struct Image { float* pixels; int width; int height; };\nstruct Tile { float* pixels; float scale; };\n"
        "struct Seeded { float* pixels; int seed; };\n"
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
@pytest.mark.parametrize("loop", ["int i = blockIdx.x * blockDim.x + threadIdx.x; {}", "{}"])
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
