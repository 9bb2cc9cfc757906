// The second launch works on the output of the first, in place.
// kernel-lsp: 1
// task: tasks.py::add_relu
// op: add_relu(x: f32[B, N], y: f32[B, N]) -> (out: f32[B, N])
// launch: add<<<ceil_div(B * N, 128), 128>>>(x, y, out, B * N)
// launch: relu<<<ceil_div(B * N, 128), 128>>>(out, B * N)

__global__ void add(const float* x, const float* y, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}

__global__ void relu(float* v, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n && v[i] < 0.0f) v[i] = 0.0f;
}
