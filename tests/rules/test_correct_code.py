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


@pytest.mark.parametrize(
    ("code", "text", "correct", "defect"),
    [
        ("KL207", SORT.replace("n / 2", "512"), "__syncthreads();", ""),
        ("KL219", HEADS, "row * width + head * part", "0"),
        ("KL255", COPY, "device_vector<float> &", "std::vector<float> &"),
        ("KL254", BYTES, "n * 4", "n * 2"),
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
