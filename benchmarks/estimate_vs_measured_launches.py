"""Kernels under many schedules, good and bad: what an estimate must rank as the hardware does. Data only.

Each is plain CUDA with `BLOCK` and `VECTOR` set by macros, one launch, f32.
"""

from __future__ import annotations

from dataclasses import dataclass

GELU = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {
  // y[i] = gelu(x[i]); VECTOR values per thread and step, STRIDE apart between threads
  for (long i = (long)(blockIdx.x * BLOCK + threadIdx.x) * VECTOR; i < n; i += (long)gridDim.x * BLOCK * VECTOR) {
    float v[VECTOR];
#if VECTOR == 4
    *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(x + i);
#else
    v[0] = x[i];
#endif
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) v[j] = 0.5f * v[j] * (1.f + erff(v[j] * 0.70710678f));
#if VECTOR == 4
    *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<float4*>(v);
#else
    y[i] = v[0];
#endif
  }
}
"""
STRIDED = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {
  // neighbouring threads are VECTOR values apart
  long base = (long)blockIdx.x * BLOCK * VECTOR + threadIdx.x * VECTOR;
  for (int j = 0; j < VECTOR; ++j) if (base + j < n) y[base + j] = x[base + j] * 2.f;
}
"""
ROWS_BY_BLOCK = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int columns) {
  // one block per row: y = x / rms(x); the row is read twice
  __shared__ float partial[32];
  const float* row = x + (long)blockIdx.x * columns;
  float* out = y + (long)blockIdx.x * columns;
  float sum = 0.f;
#if VECTOR == 4
  for (int i = threadIdx.x; i < columns / 4; i += BLOCK) {
    float4 v = reinterpret_cast<const float4*>(row)[i];
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
#else
  for (int i = threadIdx.x; i < columns; i += BLOCK) sum += row[i] * row[i];
#endif
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.f;
  for (int w = 0; w < BLOCK / 32; ++w) sum += partial[w];
  float scale = rsqrtf(sum / columns + 1e-6f);
#if VECTOR == 4
  for (int i = threadIdx.x; i < columns / 4; i += BLOCK) {
    float4 v = reinterpret_cast<const float4*>(row)[i];
    reinterpret_cast<float4*>(out)[i] = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
  }
#else
  for (int i = threadIdx.x; i < columns; i += BLOCK) out[i] = row[i] * scale;
#endif
}
"""
ROWS_BY_WARP = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int columns) {
  // one warp per row
  long r = (long)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32;
  int lane = threadIdx.x % 32;
  const float* row = x + r * columns;
  float sum = 0.f;
  for (int i = lane; i < columns; i += 32) sum += row[i] * row[i];
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  float scale = rsqrtf(sum / columns + 1e-6f);
  for (int i = lane; i < columns; i += 32) y[r * columns + i] = row[i] * scale;
}
"""
ROWS_BY_THREAD = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int columns) {
  // one thread per row: nothing is coalesced
  long r = (long)blockIdx.x * BLOCK + threadIdx.x;
  float sum = 0.f;
  for (int i = 0; i < columns; ++i) sum += x[r * columns + i] * x[r * columns + i];
  float scale = rsqrtf(sum / columns + 1e-6f);
  for (int i = 0; i < columns; ++i) y[r * columns + i] = x[r * columns + i] * scale;
}
"""
TRANSPOSE = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {
  // y = x transposed, (n, n); VECTOR 4 means through a tile of shared memory
  int tx = threadIdx.x % 32, ty = threadIdx.x / 32, across = n / 32;
  int bx = blockIdx.x % across * 32, by = blockIdx.x / across * 32;
#if VECTOR == 4
  __shared__ float tile[32][33];
  for (int j = ty; j < 32; j += BLOCK / 32) tile[j][tx] = x[(long)(by + j) * n + bx + tx];
  __syncthreads();
  for (int j = ty; j < 32; j += BLOCK / 32) y[(long)(bx + j) * n + by + tx] = tile[tx][j];
#else
  for (int j = ty; j < 32; j += BLOCK / 32) y[(long)(bx + tx) * n + by + j] = x[(long)(by + j) * n + bx + tx];
#endif
}
"""
PRODUCT = """
extern "C" __global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {
  // y = x x, (n, n); VECTOR 4 means through tiles of shared memory; BLOCK is 256
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16, across = n / 16;
  int column = blockIdx.x % across * 16 + tx, row = blockIdx.x / across * 16 + ty;
  float sum = 0.f;
#if VECTOR == 4
  __shared__ float a[16][16], b[16][17];
  for (int t = 0; t < n; t += 16) {
    a[ty][tx] = x[(long)row * n + t + tx];
    b[ty][tx] = x[(long)(t + ty) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += a[ty][i] * b[i][tx];
    __syncthreads();
  }
#else
  for (int i = 0; i < n; ++i) sum += x[(long)row * n + i] * x[(long)i * n + column];
#endif
  y[(long)row * n + column] = sum;
}
"""


@dataclass(frozen=True)
class Launch:
    """One launch: tensors x and y of `n_elements` f32 each, and one int argument."""

    name: str
    body: str
    grid: int
    block: int
    vector: int
    n_elements: int
    argument: int

    @property
    def text(self) -> str:
        return f"#define BLOCK {self.block}\n#define VECTOR {self.vector}\n{self.body}"


N = 1 << 26


def _gelu(block: int, vector: int, grid: int | None = None) -> Launch:
    blocks = grid or N // (block * vector)
    return Launch(f"gelu block={block} vector={vector} grid={blocks}", GELU, blocks, block, vector, N, N)


def _strided(stride: int) -> Launch:
    return Launch(f"strided by {stride}", STRIDED, N // (256 * stride), 256, stride, N, N)


def _rows(rows: int, columns: int, block: int, vector: int) -> Launch:
    name = f"rows {rows}x{columns} block={block} vector={vector}"
    return Launch(name, ROWS_BY_BLOCK, rows, block, vector, rows * columns, columns)


def _warps(rows: int, columns: int, block: int) -> Launch:
    name = f"rows {rows}x{columns} by warp block={block}"
    return Launch(name, ROWS_BY_WARP, rows * 32 // block, block, 1, rows * columns, columns)


def _threads(rows: int, columns: int) -> Launch:
    name = f"rows {rows}x{columns} by thread"
    return Launch(name, ROWS_BY_THREAD, rows // 128, 128, 1, rows * columns, columns)


def _square(name: str, body: str, n: int, tile: int, vector: int) -> Launch:
    return Launch(f"{name} {n} vector={vector}", body, (n // tile) ** 2, 256, vector, n * n, n)


LAUNCHES = (
    *(_gelu(block, vector) for block in (32, 128, 256, 1024) for vector in (1, 4)),
    *(_gelu(256, 4, grid) for grid in (8, 66, 132, 1056)),
    *(_strided(stride) for stride in (1, 2, 8, 32)),
    *(_rows(16384, 4096, block, vector) for block in (64, 256, 1024) for vector in (1, 4)),
    *(_rows(1 << 20, 64, block, 1) for block in (32, 64, 256)),
    *(_rows(64, 1 << 18, block, 4) for block in (256, 1024)),
    *(_rows(64, 1024, block, 4) for block in (64, 256)),
    _warps(1 << 20, 64, 128),
    _warps(1 << 20, 64, 256),
    _warps(16384, 4096, 256),
    _threads(1 << 20, 64),
    _threads(16384, 4096),
    *(_square("transpose", TRANSPOSE, 8192, 32, vector) for vector in (1, 4)),
    *(_square("product", PRODUCT, 1024, 16, vector) for vector in (1, 4)),
    *(_square("product", PRODUCT, 4096, 16, vector) for vector in (1, 4)),
)
