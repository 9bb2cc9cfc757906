// Asynchronous copies, fragments, and products by a warp.

//@ copy_async
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

//@ commit_copies
// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

//@ wait_for_copies
// Waits for this thread's copies, but for its last PENDING groups.
template <int PENDING>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

//@ load_matrices
// Four matrices of 8 rows of 16 bytes. Lane l passes row l % 8 of matrix l / 8, and gets word l % 4 of each row l / 4.
__device__ inline void load_matrices(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))));
}

//@ load_transposed
// The same with 8 x 8 matrices of 16-bit elements, transposed.
__device__ inline void load_transposed(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))));
}

//@ split_tf32
// x = high + low: the 11 leading bits of x, rounded to the nearest, and the rest. Of an infinity, low is NaN.
__device__ inline void split_tf32(unsigned bits, unsigned& high, unsigned& low) {
    high = (bits + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(__uint_as_float(bits) - __uint_as_float(high));
}

//@ start_tf32
// sum = a * b for a 16 x 8 by an 8 x 8 matrix, shared by the lanes of a warp.
__device__ inline void start_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

//@ multiply_tf32
// sum += a * b for matrices of these sizes.
__device__ inline void multiply_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//@ multiply_{bits}
// sum += a * b for a 16 x 16 by a 16 x 8 matrix, shared by the lanes of a warp.
__device__ inline void multiply_{bits}(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.{bits}.{bits}.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//@ multiply_i8
// sum += a * b for a 16 x 32 by a 32 x 8 matrix, shared by the lanes of a warp.
__device__ inline void multiply_i8(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//@ cluster_rank
// The number of this block in its cluster.
__device__ inline int cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

//@ least_exact_sum
// The size from which a sum of products of split numbers has all digits. What a number loses is below 2^-137: in n
// terms of up to 2^10 n * 2^-127 at most, which is beyond the 24 digits of a sum from n * 2^-103 on.
__device__ inline float least_exact_sum(float n_terms) { return n_terms * 9.8607613e-32f; }

//@ must_be_redone
// Whether a sum of products of split numbers may differ from that of the numbers: an infinity, NaN or overflow was met,
// or low parts have lost digits.
__device__ inline bool must_be_redone(float sum, float n_terms) {
    const float size = fabsf(sum);
    return !(size <= 3.4028235e38f) || (size < least_exact_sum(n_terms) && size > 0.0f);
}

//@ SumCheck
// Finds out whether one of many sums must be redone, in fewer instructions than for each: zeros count as large.
struct SumCheck {
    unsigned least = 0xffffffffu;  // twice the bits of the smallest sum, less one
    float nan = 0.0f;              // NaN once a sum was an infinity or NaN
    __device__ inline void take(float sum) {
        least = min(least, 2 * __float_as_uint(sum) - 1);
        nan = fmaf(sum, 0.0f, nan);
    }
    __device__ inline bool fails(float n_terms) const {
        return nan != 0.0f || least < 2 * __float_as_uint(least_exact_sum(n_terms)) - 1;
    }
};

