"""Faults whose evidence is elsewhere in the file: a class's number, a helper, a macro, another product."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda, pytorch

HEAD = """import torch
from torch import nn
from torch.nn import functional as F

class Model(nn.Module):
    CLASSES = NUMBER
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, self.CLASSES)
    def forward(self, h, labels):
        logits = self.head(h).float()
        return F.cross_entropy(logits.view(-1, self.CLASSES), labels)
"""
NET = """import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)

def net():
    return nn.Sequential(Block(), Block())

def train(x):
    model = net().to("cuda"LAYOUT)
    with torch.autocast("cuda"):
        return model(x)
"""
TOWER = """import torch
from torch import nn

class Tower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = layer(INPUT)
        return x

def run(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return model(x)
"""
NOISE = """import torch

def train(images):
    dev = images.device
    for _ in range(9):
        noise = MADE
        images = images + noise
    return images
"""
MASK = """import torch
from torch import nn

class Window(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("mask", torch.ones(n, n).tril())
    def forward(self, x):
        n = x.size(1)
        ones = torch.ones(n, n, device=x.device)
        return x + MASKED
"""
AVERAGE = """import torch

def update(shadow, model, decay):
    for a, b in zip(shadow.parameters(), model.parameters()):
        STEP
"""
LENGTHS = """import torch

def count(model, batches, pad):
    lengths = []
    for ids in batches:
        out = model(ids)
        lengths.extend(READ)
    return lengths
"""
TIMED = """import time
import torch

def bench(fn, x):
    WAIT
    start = time.perf_counter()
    for _ in range(10):
        fn(x.cuda())
    WAIT
    end = time.perf_counter()
    return end - start
"""
WAIT = "torch.cuda.synchronize()"


GATHER = """__global__ void gather(const float* table, const int* ids, float* out, int dim) {
    const int row = ids[blockIdx.x];
    SOURCE
    const long long to = static_cast<long long>(blockIdx.x) * dim;
    for (int d = threadIdx.x; d < dim; d += blockDim.x) out[to + d] = table[from + d];
}
"""
ROWS = """struct View {
    const float* data;
    int cols;
    __device__ float at(int r, int c) const { return data[INDEX]; }
};
__global__ void norm(View v, float* out) {
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int c = 0; c < v.cols; ++c) sum += v.at(r, c);
    out[r] = sum;
}
"""
TILES = """template <typename T>
__global__ void flip(const T* in, T* out, int n) {
    __shared__ T tile[32][WIDTH];
    tile[threadIdx.y][threadIdx.x] = in[(blockIdx.y * 32 + threadIdx.y) * n + blockIdx.x * 32 + threadIdx.x];
    __syncthreads();
    out[(blockIdx.x * 32 + threadIdx.y) * n + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""
BYTES = """#define OK(x) do { if (x) return 1; } while (0)
int run(int rows, int cols) {
    const size_t count = static_cast<size_t>(rows) * cols;
    float* x = nullptr;
    OK(cudaMalloc(&x, SIZE));
    return 0;
}
"""
EXTENSION = """#define CHECK_F32(t) TORCH_CHECK((t).scalar_type() == at::kFloat, "f32")
#define CHECK_DENSE(t) TORCH_CHECK((t).is_contiguous(), "contiguous")
#define CHECK_ALL(t) CHECK_F32(t); CHECK_DENSE(t)
void run(at::Tensor q) {
    TESTED(q);
    k<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(q.data_ptr<float>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""


@pytest.mark.parametrize(
    ("text", "hole", "bad", "good", "code"),
    [
        (GATHER, "SOURCE", "int from = row * dim;", "long long from = (long long)row * dim;", "KL216"),
        (ROWS, "INDEX", "r * cols + c", "c * cols + r", "KL210"),
        (TILES, "WIDTH", "32", "33", "KL211"),
        (BYTES, "SIZE", "count", "count * sizeof(float)", "KL254"),
        (EXTENSION, "TESTED", "CHECK_F32", "CHECK_ALL", "KL261"),
    ],
)
def test_cuda_is_judged_by_the_whole_file(text: str, hole: str, bad: str, good: str, code: str) -> None:
    assert code in {each.code for each in cuda.check(text.replace(hole, bad))}
    assert code not in {each.code for each in cuda.check(text.replace(hole, good))}


DISTILL = """import torch
from torch.nn import functional as F

VOCAB = NUMBER

def loss(student_logits, target):
    return F.kl_div(F.log_softmax(student_logits.float() / 2, dim=-1), target)
"""
PRINTED = """import torch

def train(model, batches, optimizer):
    for x in batches:
        loss = model(x)
        loss.backward()
        optimizer.step()
        SHOWN
"""
TABLE = """import numpy as np
import torch

def frequencies(n):
    exponent = np.arange(n) / n
    return torch.from_numpy(MADE)
"""
CACHE = """import torch

def attend(k, past):
    k = KEYS
    return k
"""
CONTEXT = """import time
import torch

class Timer:
    def __enter__(self):
        WAIT
        self.start = time.time()
        return self

    def __exit__(self, *error):
        WAIT
        self.elapsed = time.time() - self.start

def run(x):
    with Timer() as timer:
        x.cuda()
    return timer.elapsed
"""
TRAINER = """import torch
from torch import nn

def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3), nn.Conv2d(b, b, 3))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = conv(3, 8)

class Trainer:
    def __init__(self):
        self.model = Net().cuda()LAYOUT

    def step(self, x):
        with torch.autocast("cuda"):
            return self.model(x)
"""
LAID_OUT = ".to(memory_format=torch.channels_last)"


@pytest.mark.parametrize(
    ("text", "hole", "bad", "good", "code"),
    [
        (HEAD, "NUMBER", "128256", "1000", "KL161"),
        (NET, "LAYOUT", "", ", memory_format=torch.channels_last", "KL163"),
        (TOWER, "INPUT", "x.half()", "x", "KL164"),
        (NOISE, "MADE", "torch.randn(images.shape).to(dev)", "torch.randn(images.shape, device=dev)", "KL121"),
        (MASK, "MASKED", "torch.tril(ones)", "self.mask[:n, :n]", "KL127"),
        (AVERAGE, "STEP", "a.lerp_(b, 1 - decay)", "a.copy_(b)", "KL162"),
        (AVERAGE, "STEP", "a.mul_(decay).add_(b, alpha=1 - decay)", "a.copy_(b)", "KL162"),
        (LENGTHS, "READ", "(out != pad).sum(-1).tolist()", "(out != pad).sum(-1)", "KL105"),
        (TIMED, "WAIT", "pass", WAIT, "KL168"),
        (DISTILL, "NUMBER", "151_936", "1_000", "KL161"),
        (PRINTED, "SHOWN", "print(loss)", "pass", "KL105"),
        (PRINTED, "SHOWN", 'print(f"{loss:.3f}")', 'print("step")', "KL105"),
        (TABLE, "MADE", "1e4 ** -exponent", "(1e4 ** -exponent).astype(np.float32)", "KL131"),
        (CACHE, "KEYS", "torch.cat((past[0], k), dim=2)", "torch.cat((k, k), dim=2)", "KL114"),
        (CONTEXT, "WAIT", "pass", WAIT, "KL168"),
        (TRAINER, "LAYOUT", "", LAID_OUT, "KL163"),
    ],
)
def test_python_is_judged_by_the_whole_file(text: str, hole: str, bad: str, good: str, code: str) -> None:
    assert code in {each.code for each in pytorch.check(text.replace(hole, bad))}
    assert code not in {each.code for each in pytorch.check(text.replace(hole, good))}


MEANS = """template <typename T> class Buffer { public: T* get() const; };
int main() try {
    const int n = 100;
    std::unique_ptr<double[]> host(new double[n]);
    Buffer<double> device(n);
    return cudaMemcpy(host.get(), device.get(), n * sizeof(HELD), cudaMemcpyDeviceToHost);
} catch (...) { return 1; }
"""
BOXES = """void boxes(at::Tensor a) {
    TORCH_CHECK(TESTED, "a");
    a = a.contiguous();
    k<<<1, 32, 0, STREAM>>>(a.data_ptr<float>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""
CURRENT = "at::cuda::getCurrentCUDAStream()"
VOLUME = """__global__ void pool(const char* v, char* out, int w, int h) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y, z = blockIdx.z;
    INDEX at = WIDE(z * h + y) * w + x;
    out[((size_t)z * h + y) * w + x] = v[at];
}
"""
SWAPS = """__device__ void order(int& a, int& b) { if (a > b) { int t = a; a = b; b = t; } }
__global__ void sort(int* keys) {
    __shared__ int s[256];
    const unsigned t = threadIdx.x;
    s[t] = keys[t];
    __syncthreads();
    for (unsigned step = 128; step > 0; step >>= 1) {
        const unsigned other = t ^ step;
        if (other > t) order(s[t], s[other]);
        BARRIER
    }
    __syncthreads();
    keys[t] = s[t];
}
"""


@pytest.mark.parametrize(
    ("text", "bad", "good", "code"),
    [
        (MEANS, {"HELD": "float"}, {"HELD": "double"}, "KL254"),
        (BOXES, {"TESTED": "a.dim() == 2", "STREAM": CURRENT}, {"TESTED": "a.is_cuda()", "STREAM": CURRENT}, "KL266"),
        (BOXES, {"TESTED": "a.is_cuda()", "STREAM": "0"}, {"TESTED": "a.is_cuda()", "STREAM": CURRENT}, "KL260"),
        (VOLUME, {"INDEX": "int", "WIDE": ""}, {"INDEX": "size_t", "WIDE": "(size_t)"}, "KL216"),
        (SWAPS, {"BARRIER": ""}, {"BARRIER": "__syncthreads();"}, "KL208"),
    ],
    ids=["container", "device", "stream", "volume", "references"],
)
def test_cuda_is_judged_by_other_lines(text: str, bad: dict[str, str], good: dict[str, str], code: str) -> None:
    def found(holes: dict[str, str]) -> set[str]:
        filled = text
        for hole, value in holes.items():
            filled = filled.replace(hole, value)
        return {each.code for each in cuda.check(filled)}

    assert code in found(bad)
    assert code not in found(good)
