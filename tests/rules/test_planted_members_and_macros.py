"""Planted defects behind members, methods, macros and asynchronous copies, beside correct code of the same form."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda, pytorch

GRAPH = """
struct Mesh { std::vector<double> weight; int n; };
struct DeviceMesh { double* weight; int n; };
DeviceMesh upload(const Mesh& mesh) {
    DeviceMesh made;
    const size_t n_weights = mesh.weight.size();
    if (cudaMalloc(&made.weight, HOLE) != cudaSuccess) abort();
    return made;
}
"""
HALVE = """
__global__ void halve(float* __restrict__ v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] *= 0.5f;
}
"""
METHOD = HALVE + "void run(Field& f) { const int blocks = HOLE; halve<<<blocks, 128>>>(f.data(), f.length()); }\n"
MACRO = (
    "#define N_THREADS 128\n#define N_GRID(n) (HOLE)\n"
    + HALVE
    + "void run(float* v, int count) { halve<<<N_GRID(count), N_THREADS>>>(v, count); }\n"
)
MACRO_OF_TWO = (
    "#define PARTS(a, b) (HOLE)\n"
    + HALVE
    + "void run(float* v, int count) { halve<<<PARTS(count, 128), 128>>>(v, count); }\n"
)
PACKS = """
__global__ void set(float* __restrict__ y, float a) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    for (int k = 0; k < 8; ++k) HOLE;
}
void run(float* y, int n) { set<<<(n + 2047) / 2048, 256>>>(y, 1.0f); }
"""
WHOLE_BUFFER = """
__global__ void set(float* __restrict__ y, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = a;
}
cudaError_t run(float** y, int n) {
    const int n_blocks = (n + 255) / 256;
    cudaError_t error = cudaMalloc(y, HOLE * sizeof(float));
    if (error == cudaSuccess) set<<<n_blocks, 256>>>(*y, 1.0f);
    return error;
}
"""
OWN_STATES = """
__global__ void draw(unsigned* __restrict__ y, unsigned key) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = i ^ key;
}
cudaError_t run(unsigned** y, int n) {
    const int n_blocks = (n + 255) / 256;
    const size_t n_states = HOLE;
    cudaError_t error = cudaMalloc(y, n_states * sizeof(unsigned));
    if (error == cudaSuccess) draw<<<n_blocks, 256>>>(*y, 7u);
    return error;
}
"""
SIDES = """
typedef struct { double* mass; int n; } bodies_t;
typedef struct { double* mass; int n; } device_bodies_t;
cudaError_t load(const bodies_t* from, device_bodies_t* to, int n) {
    cudaError_t error = cudaMalloc((void**)&to->mass, n * sizeof(double));
    if (error != cudaSuccess) return error;
    return cudaMemcpy(to->mass, from->mass, HOLE, cudaMemcpyHostToDevice);
}
"""
HALO = """
__global__ void blur(const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.xHOLE;
    if (i <= n) y[i] = x[i] * 0.5f;
}
"""
LEAVES = HALO.replace("if (i <= n) y[i] = x[i] * 0.5f;", "if (i > n) return;\n    y[i] = x[i] * 0.5f;")
TILES = """
#define WIDTH 128
__global__ void sums(const float* __restrict__ x, float* __restrict__ y, int n_steps) {
    const float* mine = x + static_cast<size_t>(blockIdx.x) * HOLE * WIDTH;
    float sum = 0.0f;
    for (int k = 0; k < n_steps; ++k) sum += mine[k * WIDTH + threadIdx.x];
    y[blockIdx.x * WIDTH + threadIdx.x] = sum;
}
void run(const float* x, float* y, int n) { sums<<<n, WIDTH>>>(x, y, 4); }
"""
LOOPS = """
#define EACH(k, n) for (HOLE k = blockIdx.x * (HOLE)blockDim.x + threadIdx.x; k < (n); k += gridDim.x * blockDim.x)
__global__ void spread(const float* __restrict__ x, float* __restrict__ y, int64_t n, int pitch) {
    EACH(at, n) {
        const int to = at * pitch;
        y[to] = x[at];
    }
}
"""
ASYNC = """
__global__ void flip(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ alignas(16) float part[512];
    __pipeline_memcpy_async(part + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    HOLE
    y[threadIdx.x] = part[READ];
}
void run(const float* x, float* y) { flip<<<1, 128>>>(x, y); }
"""


@pytest.mark.parametrize(
    ("code", "text", "defect", "correct"),
    [
        ("KL254", GRAPH, "n_weights", "n_weights * sizeof(double)"),
        ("KL256", METHOD, "f.length() / 128", "(f.length() + 127) / 128"),
        ("KL256", METHOD, "f.length() / 128", "f.padded_length() / 128"),
        ("KL256", MACRO, "(n) / N_THREADS", "((n) + N_THREADS - 1) / N_THREADS"),
        ("KL256", MACRO_OF_TWO, "(a) / (b)", "((a) + (b) - 1) / (b)"),
        ("KL256", PACKS, "y[i + k] = a", "y[k] += a"),
        ("KL256", WHOLE_BUFFER, "n", "n_blocks * 256"),
        ("KL256", WHOLE_BUFFER, "n", "256 * (size_t)n_blocks"),
        ("KL201", OWN_STATES, "n", "(size_t)n_blocks * 256"),
        ("KL201", OWN_STATES, "n_blocks * n", "n_blocks * (size_t)256"),
        ("KL254", SIDES, "n", "n * sizeof(double)"),
        ("KL201", HALO, "", " + 1"),
        ("KL201", LEAVES, "", " + 1"),
        ("KL201", TILES, "2", "n_steps"),
        ("KL274", LOOPS, "int64_t", "int"),
        ("KL207", ASYNC.replace("READ", "511 - threadIdx.x"), "", "__syncthreads();"),
        ("KL207", ASYNC.replace("HOLE", "").replace("READ", "HOLE"), "4 * threadIdx.x + 5", "4 * threadIdx.x + 3"),
    ],
)
def test_a_planted_defect_is_found_and_its_twin_is_not(code: str, text: str, defect: str, correct: str) -> None:
    assert code in {each.code for each in cuda.check(text.replace("HOLE", defect))}
    assert code not in {each.code for each in cuda.check(text.replace("HOLE", correct))}


def test_a_member_of_one_name_is_on_the_side_of_its_own_structure() -> None:
    assert not [each for each in cuda.check(SIDES.replace("HOLE", "n * sizeof(double)")) if each.code == "KL255"]
    one = SIDES.replace("bodies_t* from", "device_bodies_t* from").replace("HOLE", "n * sizeof(double)")
    one = one.replace("typedef struct { double* mass; int n; } bodies_t;\n", "")
    assert [each.code for each in cuda.check(one)] == ["KL255"]


COUNTER = """
import torch

class Tally:
    def __init__(self, device):
        self.sums = torch.zeros(8, dtype=torch.float64, device=device)

    def add(self, x):
        HOLE
"""
SMOOTHED = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Shape:
    words: int = SIZE

class Head(nn.Module):
    def __init__(self, to_words):
        super().__init__()
        self.to_words = to_words

    def forward(self, h, target):
        return -torch.log_softmax(self.to_words(h), dim=-1).gather(-1, target[..., None]).mean()

class Model(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.to_words = nn.Linear(512, shape.words)
        self.loss = Head(self.to_words)
"""
ATTENTION = """
import torch

def attend(q, k, v, bias):
    scores = torch.baddbmm(bias, q, k.transpose(1, 2))
    weights = scores.softmax(dim=-1)
    HOLE
    return weights @ v
"""
STEP = """
import torch

class Sign(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p]["m"]
                m.lerp_(p.grad, 0.1)
                p.add_(m.sign() + p.grad, alpha=-group["lr"])
"""


@pytest.mark.parametrize(
    ("code", "text", "defect", "correct"),
    [
        ("KL130", COUNTER, "return self.sums * x", "self.sums += x.sum(0)"),
        ("KL130", COUNTER, "return self.sums * x", "self.sums.view(-1).index_add_(0, x, x)"),
        ("KL130", COUNTER, "self.sums_of_x += x", "self.sums[0] += x.sum()"),
        ("KL130", COUNTER, "self.sums_of_x = self.sums + x", "self.sums = x.sum(0) + self.sums"),
        ("KL161", SMOOTHED.replace("SIZE", "HOLE"), "128_000", "1000"),
        ("KL161", SMOOTHED.replace("SIZE", "128_000\n\nclass Small:\n    words: int = HOLE"), "64_000", "1000"),
        ("KL160", ATTENTION, "", "best = weights.amax(-1)"),
        ("KL160", ATTENTION, "weights = weights.to(v.dtype)", "print(weights.sum())"),
        ("KL160", ATTENTION, "n = weights.shape[0]", "keep(weights)"),
    ],
)
def test_a_slow_line_is_found_and_its_twin_is_not(code: str, text: str, defect: str, correct: str) -> None:
    assert code in {each.code for each in pytorch.check(text.replace("HOLE", defect))}
    assert code not in {each.code for each in pytorch.check(text.replace("HOLE", correct))}


@pytest.mark.parametrize(
    ("code", "text", "line"),
    [
        ("KL160", ATTENTION.replace("HOLE", ""), "    scores = torch.baddbmm(bias, q, k.transpose(1, 2))"),
        ("KL162", STEP, '            for p in group["params"]:'),
    ],
)
def test_a_finding_is_where_the_code_to_replace_begins(code: str, text: str, line: str) -> None:
    found = [each.range.start_line for each in pytorch.check(text) if each.code == code]
    assert [text.splitlines()[each] for each in found] == [line]
