"""Device functions of kernels on tensor cores: asynchronous copies, fragments, products by a warp, and by four with
`wgmma`."""

from __future__ import annotations

TENSOR_CORE_HELPERS: dict[str, str] = {
    "copy_async": """
// Starts a copy of BYTES to shared memory; where not `inside`, nothing is read and zeros are written.
template <int BYTES>
__device__ inline void copy_async(void* to, const void* from, bool inside) {
    const unsigned to_shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int n_bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16) {  // past L1
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(to_shared), "l"(from), "r"(n_bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;"
                     ::"r"(to_shared), "l"(from), "r"(n_bytes), "n"(BYTES) : "memory");
    }
}
""",
    "commit_copies": """
// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
""",
    "wait_for_copies": """
// Waits for this thread's copies, but for its last PENDING groups.
template <int PENDING>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
""",
    "load_matrices": """
// Four matrices of 8 rows of 16 bytes. Lane l passes row l % 8 of matrix l / 8, and gets word l % 4 of each row l / 4.
__device__ inline void load_matrices(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))));
}
""",
    "load_transposed": """
// The same with 8 x 8 matrices of 16-bit elements, transposed.
__device__ inline void load_transposed(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))));
}
""",
    "split_tf32": """
// x = high + low: the 11 leading bits of x, rounded to the nearest, and the rest. Of an infinity, low is NaN.
__device__ inline void split_tf32(unsigned bits, unsigned& high, unsigned& low) {
    high = (bits + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(__uint_as_float(bits) - __uint_as_float(high));
}
""",
    "start_tf32": """
// sum = a * b for a 16 x 8 by an 8 x 8 matrix, shared by the lanes of a warp.
__device__ inline void start_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}
""",
    "multiply_tf32": """
// sum += a * b for matrices of these sizes.
__device__ inline void multiply_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
""",
    **{
        f"multiply_{kind}": f"""
// sum += a * b for a 16 x 16 by a 16 x 8 matrix, shared by the lanes of a warp.
__device__ inline void multiply_{kind}(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
        "{{%0, %1, %2, %3}};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""
        for kind in ("f16", "bf16")
    },
    "cluster_rank": """
// The number of this block in its cluster.
__device__ inline int cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
""",
    "must_be_redone": """
// Whether a sum of products of split numbers may differ from that of the numbers: an infinity, NaN or overflow was met,
// or low parts have lost digits. What a number loses is below 2^-137: in n terms of up to 2^10 n * 2^-127 at most,
// which is beyond the 24 digits of a sum from n * 2^-103 on.
__device__ inline bool must_be_redone(float sum, float n_terms) {
    const float size = fabsf(sum);
    return !(size <= 3.4028235e38f) || (size < n_terms * 9.8607613e-32f && size > 0.0f);
}
""",
}
"""Texts by name. None depends on a type that the caller chooses."""


WARPGROUP_COLUMNS = (32, 64, 96, 128)
"""Columns of results per `wgmma` of a contraction's tile."""
ALL_COLUMNS = (*range(16, 72, 8), 96, 128)
"""Columns of results per `wgmma` that helpers exist for."""
_REGISTERS_PER_LINE, _SUMS_PER_LINE = 16, 4


def _lines(texts: list[str], indent: str, per_line: int, *, quoted: bool = False) -> str:
    rows = [", ".join(texts[start : start + per_line]) for start in range(0, len(texts), per_line)]
    return f', "\n{indent}"'.join(rows) if quoted else f",\n{indent}".join(rows)


def _multiply(n_columns: int) -> str:
    """Return the text of one `wgmma` of TF32 numbers, whose sums are `n_columns` / 2 registers of each thread."""
    n_sums = n_columns // 2
    registers = _lines([f"%{place}" for place in range(n_sums)], " " * 8, _REGISTERS_PER_LINE, quoted=True)
    sums = _lines([f'"+f"(sums[{place // 4}][{place % 4}])' for place in range(n_sums)], " " * 10, _SUMS_PER_LINE)
    a = ", ".join(f"%{n_sums + place}" for place in range(4))
    operands = ", ".join(f'"r"(a[{place}])' for place in range(4))
    return f"""
// Starts sums = a * b, or += where `adds`: `a` is 64 x 8 in registers of four warps, `b` 8 x {n_columns} in shared
// memory.
__device__ inline void multiply_warpgroup_{n_columns}(float (&sums)[{n_columns // 8}][4], const unsigned (&a)[4],
                                              unsigned long long b, bool adds) {{
    asm volatile(
        "{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{n_sums + 5}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n_columns}k8.f32.tf32.tf32 {{"
        "{registers}}}, "
        "{{{a}}}, %{n_sums + 4}, adds, 1, 1;\\n}}"
        : {sums}
        : {operands}, "l"(b), "r"(static_cast<int>(adds)));
}}
"""


WARPGROUP_HELPERS: dict[str, str] = {
    "describe_tile": """
// Describes a tile in shared memory to wgmma: its columns are rows of 128 swizzled bytes, 8 to a kibibyte.
__device__ inline unsigned long long describe_tile(const void* tile) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    return (address >> 4 & 0x3fffu) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
""",
    "describe_pieces": """
// The same without a swizzle: pieces of 16 bytes of 8 columns lie together, and those of all n before the next 4 k.
__device__ inline unsigned long long describe_pieces(const void* tile, int n) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    return (address >> 4 & 0x3fffu) | static_cast<unsigned long long>(n) << 16 | 8ull << 32;
}
""",
    "begin_products": """
// From here on wgmma may read registers that were written before.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
""",
    "commit_products": """
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
""",
    "wait_for_products": """
// Waits for this warp's products, but for its last PENDING groups.
template <int PENDING>
__device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
""",
    "show_to_products": """
// Lets wgmma see what this thread has written to shared memory.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async;" ::: "memory"); }
""",
    "meet": """
// Waits at a named barrier until `n_threads` have come, those that only arrive included.
__device__ inline void meet(int barrier, int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}
""",
    "arrive": """
__device__ inline void arrive(int barrier, int n_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}
""",
    "dec_registers": """
// Leaves each thread of four warps COUNT registers.
template <int COUNT>
__device__ inline void dec_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
""",
    "inc_registers": """
// Waits until each thread of four warps has COUNT registers.
template <int COUNT>
__device__ inline void inc_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
""",
    "low_tf32": """
// What is left of x behind its 11 leading bits, which are all that tensor cores read of it. For an infinity
// it is -0: rounding carries the NaN 0x7fffffff over to the sign.
__device__ inline float low_tf32(float x) {
    const float low = x - __uint_as_float(__float_as_uint(x) & 0xffffe000u);
    return __uint_as_float(__float_as_uint(low) + 0x1000u);  // rounded where the low bits are cut off
}
""",
    **{f"multiply_warpgroup_{count}": _multiply(count) for count in ALL_COLUMNS},
}
"""Name -> text, for sm_90a alone."""
