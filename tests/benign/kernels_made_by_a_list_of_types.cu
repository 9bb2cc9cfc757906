// The kernels' heads are made by a macro that a list of types is given to.
// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: scale_f32<<<ceil_div(B * N, 128), 128>>>(x, out, B * N, 2.0)
#define DISPATCH(_) _(f32, float) _(f64, double)
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define MAKE(suffix, T)                                          \
    __global__ void CAT(scale, suffix)(const T* x, T* out, int n, T by) {  \
        int i = blockIdx.x * blockDim.x + threadIdx.x;            \
        if (i < n) out[i] = by * x[i];                            \
    }
DISPATCH(MAKE)
#undef MAKE
