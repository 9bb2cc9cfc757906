// A product of one column after the other: in f32 it vanishes where PyTorch's CPU, in double, has a small number yet.
// kernel-lsp: 1
// task: tasks.py::running_product
// op: running_product(x: f32[R, T, C]) -> (out: f32[R, T, C])
// launch: running<<<ceil_div(R * C, 128), 128>>>(x, out, R, T, C)

__global__ void running(const float* __restrict__ x, float* __restrict__ out, int R, int T, int C) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= R * C) return;
    int r = k / C, c = k - r * C;
    size_t at = (size_t)r * T * C + c;
    float p = 1.f;
    for (int t = 0; t < T; ++t, at += C) {
        p *= x[at];
        out[at] = p;
    }
}
