"""Check constructs of well-kept projects in which rules saw a defect, and the defect beside each."""

from __future__ import annotations

import time

import pytest

from kernel_lsp.rules import cuda, pytorch

SORT = """
__device__ void order(unsigned &a, unsigned &b) { unsigned t; if (a > b) { t = a; a = b; b = t; } }
__global__ void sort(unsigned *d, unsigned n) {
    __shared__ unsigned s[1024];
    s[threadIdx.x] = d[threadIdx.x];
    s[threadIdx.x + 512] = d[threadIdx.x + 512];
    for (unsigned step = n / 2; step > 0; step >>= 1) {
        BODY
        unsigned p = 2 * threadIdx.x - (threadIdx.x & (step - 1));
        order(s[p], s[p + step]);
    }
    __syncthreads();
    d[threadIdx.x] = s[threadIdx.x] + s[threadIdx.x + 512];
}
"""
HEADS = """
__global__ void weigh(float *out, const float *x, int rows, int width, int heads) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * heads) {
        int head = i % heads, row = i / heads, part = width / heads;
        float *to = out + BODY;
        for (int j = 0; j < part; ++j) to[j] += x[row * width + j];
    }
}
"""
COPY = """
void load(BODY host, int n) {
    float *x = nullptr;
    CHECK(cudaMalloc(&x, n * sizeof(float)));
    CHECK(cudaMemcpy(x, host.data(), n * sizeof(float), cudaMemcpyDeviceToDevice));
    CHECK(cudaFree(x));
}
"""
BYTES = """
void make(int n) {
    float *x = nullptr;
    CHECK(cudaMalloc(&x, BODY));
    CHECK(cudaFree(x));
}
"""
OFFSET = """
__global__ void store(float *out, int64_t pitch, int n) {
    int offset = BODY;
    if (threadIdx.x < n) out[offset] = 0.0f;
}
"""
TICKET = """
__global__ void keep(const float *x, int *count, int *kept, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    BODY
}
"""
REGISTERED = """
__global__ void zero(float *x) { x[threadIdx.x] = 0.0f; }
void run() {
    float *x = (float *)malloc(1024);
    BODY
    zero<<<1, 256>>>(x);
    CHECK(cudaGetLastError());
}
"""
FLAG = """
__global__ void search(const int *x, int *out, int n) {
    __shared__ int found;
    BODY
    __syncthreads();
    if (threadIdx.x < n && x[threadIdx.x] > 0) atomicAdd(&found, 1);
    __syncthreads();
    if (threadIdx.x == 0) *out = found;
}
"""

ROWS = """
struct Rows { std::vector<int> start; };
void load(const Rows &rows) {
    int *x = nullptr;
    CHECK(cudaMalloc(&x, rows.start.size() * sizeof(int)));
    CHECK(cudaMemcpy(x, rows.start.data(), BODY, cudaMemcpyHostToDevice));
    CHECK(cudaFree(x));
}
"""
MEMBER = """
struct State {
    float *total = nullptr;
    State() { CHECK(cudaMalloc(&total, sizeof(float))); }
    ~State() { cudaFree(total); }
};
float read(State &state, int n) {
    float sum = 0.0f;
    CHECK(cudaMemcpy(&sum, state.total, sizeof(float), cudaMemcpyDeviceToHost));
    return BODY / n;
}
"""
SLOTS = """
int count(const int *x, cudaStream_t *streams) {
    int *kept = nullptr;
    CHECK(cudaMallocHost(&kept, 4 * sizeof(int)));
    for (int i = 0; i < 4; ++i)
        CHECK(cudaMemcpyAsync(kept + i, x + i, sizeof(int), cudaMemcpyDeviceToHost, streams[i]));
    BODY
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += kept[i];
    CHECK(cudaFreeHost(kept));
    return sum;
}
"""
TILE = """
__global__ void multiply(const float *a, const float *b, float *out, int n) {
    float sums[4]BODY;
    for (int k = 0; k < n; ++k)
        for (int i = 0; i < 4; ++i) sums[i] += a[k] * b[k * 4 + i];
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sums[i];
}
"""
LEAST = """
__global__ void least(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = BODY;
    if (i < n) v = x[i];
    for (int d = 16; d > 0; d >>= 1) v = fminf(v, __shfl_down_sync(0xffffffffu, v, d));
    if (threadIdx.x % 32 == 0) out[i / 32] = v;
}
"""
PACKS = """
int fill(int rows, int width) {
    BODY *pages = nullptr;
    const size_t row_bytes = size_t(width) * sizeof(__half);
    return cudaMalloc(&pages, rows * row_bytes);
}
"""
INSTANCE = """
template <typename T> struct Array { BODY *ptr; };
void read(const Array<float> &rows, std::vector<float> &out) {
    CHECK(cudaMemcpy(out.data(), rows.ptr, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
}
void write(const Array<float> &rows, const std::vector<float> &x) {
    CHECK(cudaMemcpy(rows.ptr, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
}
"""
STEPS_OF_SUMS = """
__global__ void count(const int *x, unsigned *counts) { atomicAdd(&counts[x[threadIdx.x]], 1u); }
__global__ void use(unsigned *counts) { counts[threadIdx.x] /= 2; }
void run(const int *x, int n) {
    unsigned *counts = nullptr;
    CHECK(cudaMalloc(&counts, 64 * sizeof(unsigned)));
    for (int i = 0; i < n; ++i) {
        BODY
        count<<<1, 64>>>(x, counts);
        use<<<1, 64>>>(counts);
    }
    CHECK(cudaFree(counts));
}
"""
VIEWS = """
struct View { float *data; int width, height; };
__global__ void brighten(View view) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= view.width || y >= view.height) return;
    view.data[y * view.width + x] += 1.0f;
}
void run(float *data, int width, int height) {
    const dim3 block(32, 8), grid(BODY);
    brighten<<<grid, block>>>(View{data, width, height});
    CHECK(cudaGetLastError());
}
"""
FREED = """
struct Buffer {
    float *x;
    BODY { cudaFree(x); cudaDeviceSynchronize(); }
};
"""


@pytest.mark.parametrize(
    ("code", "text", "correct", "defect"),
    [
        ("KL254", ROWS, "rows.start.size() * sizeof(int)", "rows.start.size()"),
        ("KL267", MEMBER, "sum", "*state.total"),
        ("KL268", SLOTS, "for (int i = 0; i < 4; ++i) CHECK(cudaStreamSynchronize(streams[i]));", ""),
        ("KL271", TILE, " = {}", ""),
        ("KL271", LEAST, "INFINITY", "0.0f"),
        ("KL250", FREED, "~Buffer()", "void reset()"),
        ("KL207", SORT.replace("n / 2", "512"), "__syncthreads();", ""),
        ("KL219", HEADS, "row * width + head * part", "0"),
        ("KL255", COPY, "device_vector<float> &", "std::vector<float> &"),
        ("KL254", BYTES, "n * 4", "n * 2"),
        ("KL254", PACKS, "uint4", "float"),
        ("KL265", STEPS_OF_SUMS, "CHECK(cudaMemset(counts, 0, 64 * sizeof(unsigned)));", ""),
        ("KL265", STEPS_OF_SUMS, "if (i > 0)", ""),
        ("KL256", VIEWS, "(width + 31) / 32, (height + 7) / 8", "(height + 31) / 32, (width + 7) / 8"),
        ("KL254", INSTANCE, "T", "double"),
        ("KL274", OFFSET, "threadIdx.x * sizeof(float)", "blockIdx.x * pitch"),
        ("KL214", TICKET, "kept[atomicAdd(count, 1)] = i;", "atomicAdd(count, 1);"),
        ("KL258", REGISTERED, "CHECK(cudaHostRegister(x, 1024, cudaHostRegisterMapped));", ""),
        ("KL248", FLAG, "atomicExch(&found, 0);", ""),
    ],
)
def test_correct_code_has_no_finding_and_the_defect_one(code: str, text: str, correct: str, defect: str) -> None:
    assert code not in {finding.code for finding in cuda.check(text.replace("BODY", correct))}
    assert code in {finding.code for finding in cuda.check(text.replace("BODY", defect))}


def test_elements_that_an_assumed_size_makes_equal_are_no_race() -> None:
    assert not {"KL207", "KL208", "KL219"} & {f.code for f in cuda.check(SORT.replace("BODY", "__syncthreads();"))}


def test_many_values_of_one_loss_take_linear_time() -> None:
    lines = "".join(f"    loss = loss + weigh(loss * {i}, loss, loss)\n" for i in range(60))
    text = f"import torch\ndef weigh(a, b, c):\n    return a + b + c\ndef train(loss, x):\n{lines}    print(loss)\n"
    start = time.process_time()
    pytorch.check(text)
    assert time.process_time() - start < 5.0


PACE = """
import time
import torch
def train(model, batches, optimizer, n):
    started = time.perf_counter()
    for step in range(n):
        model(next(batches).cuda()).backward()
        optimizer.step()
        BODY
            print(n / (time.perf_counter() - started))
            started = time.perf_counter()
"""


def test_the_time_of_many_steps_is_that_of_the_gpu_and_the_time_of_one_is_not() -> None:
    assert "KL168" not in {f.code for f in pytorch.check(PACE.replace("BODY", "if step % 50 == 0:"))}
    every_step = PACE.replace("BODY", "if True:").replace("train", "measure")
    assert "KL168" in {f.code for f in pytorch.check(every_step)}


STEPS = """
import torch
def step(model, batch, optimizer):
    loss = model(batch)
    loss.backward()
    optimizer.step()
    return loss.detach(), batch
def fit(model, batches, optimizer):
    total = 0.0
    for batch in batches:
        optimizer.zero_grad()
        stats = step(model, batch, optimizer)
        BODY
    return total
"""
UNTIL = """
import torch
def solve(model, optimizer, x):
    for i in range(1000):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        BODY
            break
"""
SERVED = """
import torch
class Server:
    def __init__(self, model):
        self.model = model.to("cuda").eval()
    BODY
    def answer(self, x):
        return self.model(x)
"""
BANDS = """
import numpy as np
import torch
bands = BODY * np.arange(8)
table = torch.from_numpy(bands)
"""
EPOCHS = """
import torch
def evaluate(model, batches):
    model.eval()
    with torch.inference_mode():
        return sum(model(x).sum() for x in batches)
def fit(model, batches, optimizer):
    BODY
        for x in batches:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        evaluate(model, batches)
"""


@pytest.mark.parametrize(
    ("code", "text", "correct", "defect"),
    [
        ("KL105", STEPS, "total += stats[0]", "total += sum([v.item() for v, _ in zip(stats, batch)])"),
        ("KL105", UNTIL, "if i == 99:", "if loss < 0.1:"),
        ("KL150", SERVED, "@torch.inference_mode()", ""),
        ("KL131", BANDS, "2", "2.0"),
        (
            "KL173",
            EPOCHS,
            "for epoch in range(9):\n        model.train()",
            "model.train()\n    for epoch in range(9):",
        ),
    ],
)
def test_correct_pytorch_has_no_finding_and_the_defect_one(code: str, text: str, correct: str, defect: str) -> None:
    assert code not in {finding.code for finding in pytorch.check(text.replace("BODY", correct))}
    assert code in {finding.code for finding in pytorch.check(text.replace("BODY", defect))}


def test_what_a_function_read_back_does_not_wait_again() -> None:
    text = """
import torch
def epoch(model, batches):
    total = sum(model(x).sum() for x in batches)
    return total.item()
def fit(model, batches):
    for i in range(9):
        loss = epoch(model, batches)
        print(f"{loss:.3f}")
"""
    assert "KL105" not in {finding.code for finding in pytorch.check(text)}


def test_allocations_of_listed_pointers_are_not_repeated() -> None:
    text = "void make() { float *a, *b; for (float **p : {&a, &b}) CHECK(cudaMalloc(p, 1024)); CHECK(cudaFree(a)); }"
    assert "KL253" not in {finding.code for finding in cuda.check(text)}


def test_an_update_by_an_expanded_tensor_writes_to_no_expanded_one() -> None:
    text = (
        "import torch\ndef f(x: torch.Tensor, s: torch.Tensor):\n    y = x - s\n    y /= s.expand_as(x)\n    return y\n"
    )
    assert "KL125" not in {finding.code for finding in pytorch.check(text)}
