"""Defects of memory's lifetime, of start values and of launches, each with a look-alike that is no defect."""

from __future__ import annotations

import pytest

from tests.rules.found_codes import cuda_codes
from tests.rules.found_codes import pytorch_codes as python_codes

KERNEL = "__global__ void k(float* p, int n) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}\n"
TWICE = KERNEL.format(body="if (i < n) p[i] *= 2.0f;")


def host(body: str, parameters: str = "float* h, int n, cudaStream_t s") -> str:
    return f"{TWICE}void run({parameters}) {{\n    float* d;\n    CK(cudaMalloc(&d, n * sizeof(float)));\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("    d[0] = 1.0f;\n    CK(cudaFree(d));", "KL267"),
        ("    float x = *d;\n    CK(cudaFree(d));", "KL267"),
        ("    float* x = &d[1];\n    k<<<1, 32>>>(x, n);\n    CK(cudaFree(d));", ""),
        ("    CK(cudaMemset(d, 0, sizeof(*d)));\n    CK(cudaFree(d));", ""),
        ("    CK(cudaFree(d));\n    CK(cudaMemset(d, 0, 4));", "KL269"),
        ("    CK(cudaFree(d));\n    d = nullptr;\n    CK(cudaMalloc(&d, 4));\n    CK(cudaFree(d));", ""),
        ("    free(d);", "KL269"),
        ("    k<<<1, 32>>>(d, n);\n    CK(cudaGetLastError());", "KL269"),
        ("    keep(d);", ""),
    ],
)
def test_memory_of_the_device_belongs_to_the_device_until_it_is_freed(body: str, code: str) -> None:
    found = cuda_codes(host(body)) & {"KL267", "KL269"}
    assert found == ({code} if code else set())


@pytest.mark.parametrize(("wait", "is_found"), [("", True), ("CK(cudaStreamSynchronize(s));", False)])
def test_a_local_vector_must_outlive_the_copy_that_reads_it(wait: str, is_found: bool) -> None:
    text = (
        "void push(float* d, int n, cudaStream_t s) {\n    std::vector<float> v(n, 1.0f);\n"
        f"    CK(cudaMemcpyAsync(d, v.data(), n * sizeof(float), cudaMemcpyHostToDevice, s));\n    {wait}\n}}\n"
    )
    assert ("KL268" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(("stream", "is_found"), [("b", True), ("a", False)])
def test_a_kernel_on_another_stream_does_not_wait_for_the_copy(stream: str, is_found: bool) -> None:
    text = (
        f"{TWICE}void run(float* d, const float* h, int n, cudaStream_t a, cudaStream_t b) {{\n"
        "    CK(cudaMemcpyAsync(d, h, n * sizeof(float), cudaMemcpyHostToDevice, a));\n"
        f"    k<<<(n + 255) / 256, 256, 0, {stream}>>>(d, n);\n    CK(cudaGetLastError());\n}}\n"
    )
    assert ("KL270" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("start", "step", "is_found"),
    [
        ("", "best += p[j];", True),
        (" = 0.0f", "best += p[j];", False),
        (" = 0.0f", "best = fmaxf(best, p[j]);", True),
        (" = 0.0f", "best = fmaxf(best, fabsf(p[j]));", False),
        (" = FLT_MIN", "if (p[j] > best) best = p[j];", True),
        (" = -FLT_MAX", "if (p[j] > best) best = p[j];", False),
        (" = 0.0f", "best *= p[j];", True),
        (" = 0.0f", "best = best * 0.5f + p[j]; best *= p[j];", False),
    ],
)
def test_a_reduction_begins_with_what_is_neutral(start: str, step: str, is_found: bool) -> None:
    body = f"if (i >= n) return; float best{start}; for (int j = 0; j < n; ++j) {{ {step} }} p[i] = best;"
    assert ("KL271" in cuda_codes(KERNEL.format(body=body))) is is_found


@pytest.mark.parametrize(
    ("grid", "block", "is_found"),
    [
        ("n / 256", "256", True),
        ("n >> 8", "256", True),
        ("static_cast<unsigned>(n / 256)", "256", True),
        ("(n + 255) / 256", "256", False),
        ("256", "(n + 255) / 256", True),
    ],
)
def test_a_grid_covers_each_element(grid: str, block: str, is_found: bool) -> None:
    text = f'{TWICE}void run(float* p, int n) {{\n    k<<<{grid}, {block}>>>(p, n);\n    printf("%d", n);\n}}\n'
    assert ("KL256" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("guard", "is_found"),
    [("if (i > n) return;", True), ("if (i >= n) return;", False), ("if (i > last) return;", False)],
)
def test_a_return_lets_no_index_pass_that_equals_the_size(guard: str, is_found: bool) -> None:
    body = f"int last = n - 1; {guard} p[i] *= 2.0f;"
    assert ("KL201" in cuda_codes(KERNEL.format(body=body))) is is_found


def test_an_array_in_a_structure_in_shared_memory_is_watched() -> None:
    text = (
        "struct Tile {{ float a[16][16]; }};\n"
        "__global__ void k(const float* __restrict__ x, float* __restrict__ y) {{\n"
        "    __shared__ Tile s;\n    s.a[threadIdx.y][threadIdx.x] = x[threadIdx.y * 16 + threadIdx.x];\n    {}\n"
        "    y[threadIdx.y * 16 + threadIdx.x] = s.a[threadIdx.x][threadIdx.y];\n}}\n"
    )
    assert "KL207" in cuda_codes(text.format(""))
    assert "KL207" not in cuda_codes(text.format("__syncthreads();"))


@pytest.mark.parametrize(("update", "is_found"), [("db[c] += dy[b * n + c];", True), ("db[b * n + c] += 1;", False)])
def test_blocks_along_y_that_update_one_row_race(update: str, is_found: bool) -> None:
    text = (
        "__global__ void k(const float* __restrict__ dy, float* __restrict__ db, int n) {\n"
        f"    int c = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;\n    if (c < n) {update}\n}}\n"
    )
    assert ("KL219" in cuda_codes(text)) is is_found


LOOP = (
    "import torch\nimport torch.nn.functional as F\n\n"
    "class Meter:\n    def push(self, v):\n        self.s = float(v)\n\n"
    "def train(model, data, opt, meter, log):\n    for i, (x, y) in enumerate(data):\n"
    "        loss = F.mse_loss(model(x), y)\n        opt.zero_grad()\n        loss.backward()\n        opt.step()\n"
    "        {}\n"
)


@pytest.mark.parametrize(
    ("step", "is_found"),
    [
        ("meter.push(loss.detach())", True),
        ("if torch.isnan(loss): raise ValueError", True),
        ("log.info(f'{loss}')", True),
        ("if i % 100 == 0: log.info(f'{loss}')", False),
        ("if i % 100 == 0 and torch.isnan(loss): break", False),
        ("meter.push(i)", False),
    ],
)
def test_what_reads_a_loss_in_each_step_waits_for_the_gpu(step: str, is_found: bool) -> None:
    assert ("KL105" in python_codes(LOOP.replace("{}", step))) is is_found


@pytest.mark.parametrize(
    ("update", "code"),
    [
        ("a[k] = d * a[k] + (1 - d) * p.data", "KL162"),
        ("a[k] = p.data.clone()", ""),
        ("p.grad.zero_()", "KL167"),
        ("p.grad = None", ""),
    ],
)
def test_loops_over_parameters_launch_kernels_for_each(update: str, code: str) -> None:
    text = f"import torch\n\ndef step(model, a, d):\n    for k, p in model.named_parameters():\n        {update}\n"
    assert python_codes(text) & {"KL162", "KL167"} == ({code} if code else set())


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", True),
        ("scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0)", False),
    ],
)
def test_gradients_are_unscaled_before_they_are_clipped(line: str, is_found: bool) -> None:
    text = f"import torch\nfrom torch import nn\n\ndef step(model, opt, scaler):\n    {line}\n    scaler.step(opt)\n"
    assert ("KL171" in python_codes(text)) is is_found


@pytest.mark.parametrize(
    ("product", "is_found"),
    [("a @ torch.diag(b)", True), ("torch.trace(a @ b)", True), ("torch.trace(a)", False), ("a @ b", False)],
)
def test_a_diagonal_needs_no_product_of_matrices(product: str, is_found: bool) -> None:
    text = f"import torch\n\ndef f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:\n    return {product}\n"
    assert ("KL143" in python_codes(text)) is is_found
