// Attack: A quote in a prefixed character makes a simple reader believe that a comment begins; the include behind it
//   is real.
// Caught: build_failed
// Defence: compiler
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

__device__ const char quote = u8'"'; __device__ const char* comment = "/*";
#include "/etc/passwd"

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
