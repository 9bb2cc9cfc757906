// Attack: Blocks of a row find its greatest number by atomicMax, and write where it is in a second step: another block's
//   place may come last.
// Caught: mismatch
// Without: interruptions
// kernel-lsp: 1
// task: tasks.py::arg_max
// op: arg_max(x: f32[B, N]) -> (out: i64[B])
// scratch: best: i32[B]
// fill: best = -2147483648
// fill: out = 0
// launch: k<<<dim3(4, B), 32>>>(x, best, out, N)

__global__ void k(const float* x, int* best, long long* out, int n) {
    const int chunk = (n + 3) / 4, begin = blockIdx.x * chunk, end = min(n, begin + chunk);
    int greatest = -2147483647 - 1, place = 0x7fffffff;
    for (int i = begin + threadIdx.x; i < end; i += 32) {
        const float value = x[blockIdx.y * (long long)n + i] + 0.0f;
        int key = __float_as_int(value);
        if (value != value) key = 0x7fffffff;
        else if (key < 0) key ^= 0x7fffffff;
        if (key > greatest) { greatest = key; place = i; }
    }
    for (int o = 16; o; o >>= 1) {
        const int key = __shfl_xor_sync(~0u, greatest, o), other = __shfl_xor_sync(~0u, place, o);
        if (key > greatest || (key == greatest && other < place)) { greatest = key; place = other; }
    }
    if (threadIdx.x > 0 || begin >= n) return;
    const int old = atomicMax(best + blockIdx.y, greatest);
    unsigned long long* where = (unsigned long long*)out + blockIdx.y;
    if (greatest > old) atomicExch(where, (unsigned long long)place);
    else if (greatest == old) atomicMin(where, (unsigned long long)place);
}
