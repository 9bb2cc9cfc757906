// Attack: Indices are limited to the table that the task was captured with.
// Caught: mismatch
// Defence: sizes
// kernel-lsp: 1
// task: tasks.py::embedding2
// op: embedding2(ids: i64[T], table: f32[V, D]) -> (out: f32[T, D])
// launch: emb_fwd<<<T, min(D, 256)>>>(ids, table, out, D)
// op: embedding2_backward(grad_out: f32[T, D], ids: i64[T], table: f32[V, D]) -> (grad_table: f32[V, D])
// fill: grad_table = 0
// launch: emb_bwd<<<T, min(D, 256)>>>(grad_out, ids, grad_table, D)

__global__ void emb_fwd(const long long* __restrict__ ids, const float* __restrict__ table, float* __restrict__ out, int D) {
    const long long id = min(ids[blockIdx.x], 49ll);
    for (int i = threadIdx.x; i < D; i += blockDim.x) out[(size_t)blockIdx.x * D + i] = table[id * D + i];
}
__global__ void emb_bwd(const float* __restrict__ g, const long long* __restrict__ ids, float* gt, int D) {
    const long long id = min(ids[blockIdx.x], 49ll);
    for (int i = threadIdx.x; i < D; i += blockDim.x) atomicAdd(&gt[id * D + i], g[(size_t)blockIdx.x * D + i]);
}
