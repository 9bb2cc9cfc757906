// Rows of a table, by words of 64 bits.
// kernel-lsp: 1
// task: tasks.py::embed
// op: embed(ids: i64[N], table: f32[V, D]) -> (out: f32[N, D])
// launch: k<<<N, 32>>>(ids, table, out, D)

__global__ void k(const long long* ids, const float* table, float* out, int d) {
    const long long id = (long long)ids[blockIdx.x];
    for (int i = threadIdx.x; i < d; i += 32) out[(long long)blockIdx.x * d + i] = table[id * d + i];
}
