// Products by four warps with `wgmma`, for sm_90a alone.

//@ describe_tile
// Describes a tile in shared memory to wgmma: its columns are rows of 128 swizzled bytes, 8 to a kibibyte.
__device__ inline unsigned long long describe_tile(const void* tile) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    return (address >> 4 & 0x3fffu) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

//@ describe_pieces
// The same without a swizzle: pieces of 16 bytes of 8 columns lie together, and those of all n before the next 4 k.
__device__ inline unsigned long long describe_pieces(const void* tile, int n) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    return (address >> 4 & 0x3fffu) | static_cast<unsigned long long>(n) << 16 | 8ull << 32;
}

//@ begin_products
// From here on wgmma may read registers that were written before.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

//@ commit_products
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

//@ wait_for_products
// Waits for this warp's products, but for its last PENDING groups.
template <int PENDING>
__device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

//@ show_to_products
// Lets wgmma see what this thread has written to shared memory.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async;" ::: "memory"); }

//@ meet
// Waits at a named barrier until `n_threads` have come, those that only arrive included.
__device__ inline void meet(int barrier, int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

//@ arrive
__device__ inline void arrive(int barrier, int n_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

//@ dec_registers
// Leaves each thread of four warps COUNT registers.
template <int COUNT>
__device__ inline void dec_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

//@ inc_registers
// Waits until each thread of four warps has COUNT registers.
template <int COUNT>
__device__ inline void inc_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

//@ low_tf32
// What is left of x behind its 11 leading bits, which are all that tensor cores read of it. For an infinity
// it is -0: rounding carries the NaN 0x7fffffff over to the sign.
__device__ inline float low_tf32(float x) {
    const float low = x - __uint_as_float(__float_as_uint(x) & 0xffffe000u);
    return __uint_as_float(__float_as_uint(low) + 0x1000u);  // rounded where the low bits are cut off
}

//@ multiply_warpgroup_{columns}
// Starts sums = a * b, or += where `adds`: `a` is 64 x 8 in registers of four warps, `b` 8 x {columns} in shared
// memory.
__device__ inline void multiply_warpgroup_{columns}(float (&sums)[{columns/8}][4], const unsigned (&a)[4],
                                              unsigned long long b, bool adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, {adds}, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n{columns}k8.f32.tf32.tf32 {"
        "{registers}}, "
        "{{a}}, {b}, adds, 1, 1;\n}"
        : {sums}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
}
