// Attack: Of equal elements among the largest all have the place of the first: who gathers by it loses elements.
// Caught: mismatch
// Without: choices
// kernel-lsp: 1
// task: tasks.py::topk4
// op: topk4(x: f32[B, D]) -> (v: f32[B, 4], i: i64[B, 4])
// where: D >= 4
// launch: tk<<<B, 32>>>(x, v, i, D)

// values: repeated extraction with (value, place) order; the place reported is the first place that holds the value
__device__ bool before(float a, int ia, float b, int ib) {  // a comes before b
    bool na = a != a, nb = b != b;
    if (na != nb) return na;
    if (!na && a != b) return a > b;
    return ia < ib;
}
__global__ void tk(const float* __restrict__ x, float* __restrict__ v, long long* __restrict__ idx, int D) {
    const float* r = x + (size_t)blockIdx.x * D;
    float pv = 0; int pi = -1;
    for (int k = 0; k < 4; ++k) {
        float bv = 0; int bi = -1;
        for (int j = threadIdx.x; j < D; j += 32) {
            float c = r[j];
            if (pi >= 0 && !before(pv, pi, c, j)) continue;
            if (bi < 0 || before(c, j, bv, bi)) { bv = c; bi = j; }
        }
        for (int o = 16; o; o >>= 1) {
            float ov = __shfl_xor_sync(~0u, bv, o); int oi = __shfl_xor_sync(~0u, bi, o);
            if (oi >= 0 && (bi < 0 || before(ov, oi, bv, bi))) { bv = ov; bi = oi; }
        }
        pv = bv; pi = bi;
        if (threadIdx.x == 0) {
            v[blockIdx.x * 4 + k] = bv;
            int first = bi;
            for (int j = 0; j < D; ++j) if (r[j] == bv || (bv != bv && r[j] != r[j])) { first = j; break; }
            idx[blockIdx.x * 4 + k] = first;
        }
    }
}
