"""Planted defects behind helper functions, cooperative groups, templates and names, each beside correct code."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda, pytorch

BLOCK_SUM = """
__device__ float block_sum(float v) {
    __shared__ float parts[32];
    parts[threadIdx.x >> 5] = v;
    __syncthreads();
    return parts[0] + parts[1];
}
__global__ void total(const float* __restrict__ x, float* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    BODY
}
"""
WARP_LEADERS = """
__global__ void rows(const float* __restrict__ x, float* __restrict__ out, int n) {
    __shared__ float parts[32];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    float v = cg::reduce(warp, x[block.thread_rank()], cg::plus<float>());
    if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = v;
    BODY
    if (warp.meta_group_rank() == 0) {
        float w = warp.thread_rank() < warp.meta_group_size() ? parts[warp.thread_rank()] : 0.f;
        w = cg::reduce(warp, w, cg::plus<float>());
        if (warp.thread_rank() == 0) out[blockIdx.x] = w;
    }
}
"""
DIGITS = """
__device__ int place_of(int t) { return 255 - t; }
__global__ void reverse(const int* __restrict__ x, int* __restrict__ out) {
    __shared__ int tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    BODY
    int first = place_of(255);
    out[threadIdx.x] = tile[255 - threadIdx.x + first];
}
"""
MASKED = """
__global__ void masked(const int* __restrict__ lengths, const float* __restrict__ x, float* __restrict__ out) {
    int lane = threadIdx.x & 31;
    int len = lengths[blockIdx.x];
    float v = x[lane];
    BODY
}
"""
COUNTED = """
__global__ void count(const unsigned* __restrict__ x, unsigned* __restrict__ out) {
    __shared__ unsigned bits;
    BODY
    atomicAdd(&bits, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = bits;
}
"""
LOSS = """
__global__ void loss(const float* __restrict__ a, float* sum, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        const float d = a[i] - 1.0f;
        BODY
    }
}
"""
UPLOAD = """
void upload(const int* host_edges, int n) {
    int* edges = nullptr;
    cudaError_t error = cudaMalloc(&edges, n * sizeof(int));
    if (error == cudaSuccess) error = cudaMemcpy(edges, host_edges, BODY, cudaMemcpyHostToDevice);
}
"""
STRUCTURES = """
struct Particle { float3 place; float mass; };
cudaError_t reset(int n) {
    Particle* p = nullptr;
    cudaError_t e = cudaMalloc(&p, sizeof(Particle) * n);
    return e == cudaSuccess ? cudaMemset(p, 0, BODY) : e;
}
"""
UNGUARDED = """
__global__ void widen(const short* __restrict__ x, float* __restrict__ y) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i];
}
cudaError_t run(const short* x, float* y, int n) {
    BODY
    return cudaGetLastError();
}
"""
THREADS = """
__global__ void fill(float* __restrict__ x, int n) { int i = blockIdx.x * 32 + threadIdx.x; if (i < n) x[i] = 0.f; }
cudaError_t run(float* x, int w) {
    dim3 threads(BODY);
    dim3 blocks((w + threads.x - 1) / threads.x);
    fill<<<blocks, threads>>>(x, w);
    return cudaGetLastError();
}
"""
CAPACITY = """
template <typename T, int CAP>
__global__ void copy(const T* __restrict__ x, T* __restrict__ y) {
    __shared__ T tile[CAP];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x];
}
cudaError_t run(const float* x, float* y) {
    copy<float, BODY><<<1, 512>>>(x, y);
    return cudaGetLastError();
}
"""
HALO = """
template <int BX>
__global__ void ends(const float* __restrict__ x, float* __restrict__ y, int w) {
    __shared__ float t[BX + BODY];
    const int i = blockIdx.x * BX + threadIdx.x;
    const bool inside = i < w;
    t[threadIdx.x + 1] = inside ? x[i] : 0.f;
    if (threadIdx.x == 0) t[0] = 0.f;
    __syncthreads();
    if (inside) y[i] = t[threadIdx.x + 2] - t[threadIdx.x];
}
cudaError_t run(const float* x, float* y, int w) {
    ends<64><<<(w + 63) / 64, 64>>>(x, y, w);
    return cudaGetLastError();
}
"""
FUNCTOR = """
template <class Op>
__global__ void reduce(const float* __restrict__ m, float* __restrict__ out, Op op) {
    extern __shared__ float partial[];
    partial[threadIdx.x] = m[blockIdx.x * blockDim.x + threadIdx.x];
    BODY
#pragma unroll
    for (int off = 128; off >= 1; off >>= 1) {
        if (threadIdx.x < off) partial[threadIdx.x] = op(partial[threadIdx.x], partial[threadIdx.x + off]);
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
"""
MOMENTS = """
__global__ void moments(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float sums[4];
    if (threadIdx.x < 4) sums[threadIdx.x] = 0.f;
    __syncthreads();
    atomicAdd(&sums[BODY], x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x < 4) out[threadIdx.x] = sums[threadIdx.x];
}
"""
SCATTERED = """
__global__ void scatter(const int* __restrict__ index, const float* __restrict__ src, float* out, int n, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * width) return;
    const int row = i / width, col = i % width;
    BODY
}
"""
MEMBERS = """
struct Batch {
    int* offsets = nullptr;
    void reserve(int rows) { if (cudaMalloc((void**)&offsets, BODY)) throw 1; }
};
"""
MACRO = """
#define AT(r, c, ld) ((size_t)(r) * (ld) + (c))
__global__ void transposed(const double* __restrict__ a, double* __restrict__ b, int n) {
    __shared__ double tile[32][33];
    tile[threadIdx.y][threadIdx.x] = a[AT(threadIdx.y, threadIdx.x, n)];
    BODY
    b[AT(threadIdx.y, threadIdx.x, n)] = tile[threadIdx.x][threadIdx.y];
}
"""
RESULT = """
cudaError_t make(float** table, const float* host, int n) {
    cudaError_t error = cudaMalloc(table, n * sizeof(float));
    return error == cudaSuccess ? cudaMemcpy(*table, host, n * sizeof(float), BODY) : error;
}
"""
LOOKUP = """
#define CHECK_INPUT(t) TORCH_CHECK(t.is_cuda() && t.is_contiguous(), #t " must be a contiguous CUDA tensor")
__global__ void zero(float* __restrict__ x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 0.0f; }
void run(torch::Tensor table) {
    CHECK_INPUT(table);
    BODY
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""
ZERO = "zero<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>({}, table.numel());"


@pytest.mark.parametrize(
    ("code", "text", "defect", "correct"),
    [
        ("KL202", BLOCK_SUM, "if (i < n) out[i] = block_sum(x[i]);", "out[i] = block_sum(i < n ? x[i] : 0.f);"),
        (
            "KL203",
            BLOCK_SUM,
            "if (i >= n) return; out[i] = block_sum(x[i]);",
            "if (n < 0) return; out[i] = block_sum(0.f);",
        ),
        ("KL207", WARP_LEADERS, "", "block.sync();"),
        ("KL207", DIGITS, "", "__syncthreads();"),
        (
            "KL206",
            MASKED,
            "if (lane < len) { v += __shfl_down_sync(0xffffffff, v, 16); out[lane] = v; }",
            "v += __shfl_down_sync(0xffffffff, v, 16); if (lane < len) out[lane] = v;",
        ),
        ("KL248", COUNTED, "", "if (threadIdx.x == 0) bits = 0; __syncthreads();"),
        ("KL219", LOSS, "*sum += d * d;", "atomicAdd(sum, d * d);"),
        ("KL254", UPLOAD, "2 * n * sizeof(int)", "n * sizeof(int)"),
        ("KL254", STRUCTURES, "n", "n * sizeof(Particle)"),
        (
            "KL256",
            UNGUARDED,
            "widen<<<(n + 191) / 192, 192>>>(x, y);",
            "if (n % 192) return cudaErrorInvalidValue; widen<<<(n + 191) / 192, 192>>>(x, y);",
        ),
        ("KL230", THREADS, "64, 32", "64, 8"),
        ("KL238", CAPACITY, "256", "512"),
        ("KL238", HALO, "1", "2"),
        ("KL207", MACRO, "", "__syncthreads();"),
        ("KL255", RESULT, "cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice"),
        ("KL207", FUNCTOR, "", "__syncthreads();"),
        ("KL218", MOMENTS, "4", "3"),
        ("KL219", SCATTERED, "out[index[row] * width + col] += src[i];", "out[row * width + col] = src[index[row]];"),
        ("KL254", MEMBERS, "rows + 1", "(rows + 1) * sizeof(int)"),
        ("KL264", LOOKUP, ZERO.format("(float*)table.data_ptr()"), ZERO.format("table.data_ptr<float>()")),
    ],
)
def test_defects_are_found_and_correct_code_is_not(code: str, text: str, defect: str, correct: str) -> None:
    assert code in {finding.code for finding in cuda.check(text.replace("BODY", defect))}
    assert code not in {finding.code for finding in cuda.check(text.replace("BODY", correct))}


STEP = """
import torch

def train(model, batches, optimizer):
    losses = []
    for batch in batches:
        out = model(batch)
        out["loss"].backward()
        BODY
    return losses
"""
PREDICT = """
import torch

@torch.inference_mode()
def predict(model, loader):
    found = []
    for x in loader:
        BODY
    return found
"""
ATTENTION = """
import torch

def attend(query, key, value, scale):
    scores = torch.bmm(query.transpose(1, 2), key).mul(scale)
    weights = torch.softmax(scores, -1)
    return BODY
"""
HEAD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width=512, vocab_size=BODY):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.unembed = nn.Linear(width, vocab_size)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, y):
        for layer in self.layers:
            x = layer(x)
        return self.criterion(self.unembed(x).flatten(0, 1), y.flatten())
"""
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))

def train(batches):
    net = Net()
    BODY
    with torch.autocast("cuda"):
        return [net(x) for x in batches]
"""
UNET = """
import torch
import torch.nn as nn

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)])

def segment(images):
    model = UNet().eval()
    model = model.half().cuda()BODY
    return [model(image) for image in images]
"""
HEADS = """
import math
import torch
import torch.nn as nn

class Heads(nn.Module):
    def forward(self, x):
        q, k, v = self.split(x)
        weights = q @ k.transpose(-1, -2) * 0.125
        weights = self.drop(weights.softmax(dim=-1))
        return BODY
"""
TOKENS = """
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = BODY

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.head = nn.Linear(width, VOCABULARY)

    def loss(self, x, y):
        return F.cross_entropy(self.head(x), y)
"""
DESCENT = """
import torch

@torch.no_grad()
def descend(weights, grads, lr):
    for w, g in zip(weights, grads):
        BODY
"""
NORMS = """
import torch

def norms(model):
    return {name: BODY for name, p in model.named_parameters()}
"""
HITS = """
import torch

def validate(net, loader):
    hits = 0
    for x, y in loader:
        pred = net(x)
        hits += BODY
    return hits
"""
CAST = """
import torch

def step(model, images):
    with BODY:
        features = model.encode(images)
        return torch.matmul(features.half(), model.weight)
"""
GAIN = """
import torch

def gain(P, S):
    return BODY
"""


@pytest.mark.parametrize(
    ("code", "text", "defect", "correct"),
    [
        ("KL105", STEP, 'losses.append(float(out["loss"]))', 'losses.append(out["loss"].detach())'),
        ("KL105", PREDICT, "found.append(float(model(x).mean()))", "found.append(model(x).cpu().numpy())"),
        ("KL160", ATTENTION, "torch.bmm(value, weights.transpose(1, 2))", "torch.bmm(value, key)"),
        ("KL161", HEAD, "128256", "1000"),
        ("KL163", NET, 'net.to("cuda")', 'net.to("cuda", memory_format=torch.channels_last)'),
        ("KL163", UNET, "", ".to(memory_format=torch.channels_last)"),
        ("KL160", HEADS, "weights @ v", "q @ v"),
        ("KL161", TOKENS, "50257", "1000"),
        ("KL162", DESCENT, "w -= lr * g", "print(w, g)"),
        ("KL105", NORMS, "p.grad.norm().item()", "p.grad.norm()"),
        ("KL105", STEP, 'losses.append(out["loss"].detach().item())', 'losses.append(out["loss"].detach())'),
        ("KL105", HITS, "pred.eq(y).sum().item()", "pred.eq(y).sum()"),
        ("KL164", CAST, 'torch.autocast("cuda")', "torch.no_grad()"),
        ("KL142", GAIN, "P @ torch.linalg.inv(S)", "torch.linalg.solve(S, P, left=False)"),
    ],
)
def test_defects_in_python_are_found_and_correct_code_is_not(code: str, text: str, defect: str, correct: str) -> None:
    assert code in {finding.code for finding in pytorch.check(text.replace("BODY", defect))}
    assert code not in {finding.code for finding in pytorch.check(text.replace("BODY", correct))}


def test_what_calls_a_function_with_a_barrier_orders_too() -> None:
    text = """
__device__ void meet() { __syncthreads(); }
__device__ int met(int t) { meet(); return t; }
__device__ int outer(int t) { return met(t); }
__global__ void reverse(const int* __restrict__ x, int* __restrict__ out) {
    __shared__ int tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    int t = outer(255 - threadIdx.x);
    out[threadIdx.x] = tile[255 - threadIdx.x] + t;
}
"""
    assert "KL207" not in {finding.code for finding in cuda.check(text)}
