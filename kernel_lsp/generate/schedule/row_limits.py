"""Measured limits that decide the default schedule of a row group."""

from __future__ import annotations

MAX_SERIAL_SUM = 4096
"""Maximum elements that one thread adds to one f32: the error grows with their number, and PyTorch's own sums are
pairwise."""
MIN_SHARED_COLUMNS = 8192
"""Minimum columns for several blocks per row. Reading a shorter row takes less time than an exchange between blocks."""
PORTABLE_CLUSTER = 8
"""Maximum blocks of a cluster on every GPU with clusters."""
L2_BYTES = 36 << 20
"""Bytes of active rows that stay in an H200's L2 cache (50 MB) between two passes; their results are evicted early."""
NARROW_L2_BYTES = 40 << 20
"""The same of 16 bits where one block reads a row of several tensors twice: gradients of batch norms took 35.4 us
(with a SiLU, 38.5 MB in all) and 25.9 (a residual) on an H200 so, 53.4 and 32.6 by the fastest clusters."""
SHARING = ((512, 2), (512, 4), (512, 8), (1024, 8), (512, 16), (1024, 32), (1024, 64), (1024, 128))
"""Threads and numbers of blocks that may share a row on chip, clusters first: gradients of a batch norm of 64 channels
of 0.8 MB each and a ReLU took 64.7 us on an H200 by clusters of 16 blocks, 79.3 by a grid of 32 per channel."""
SHORT_IN_BLOCK = 256
"""Maximum columns that one warp of a shared launch combines: a block's barriers took 0.4 us longer on an H200."""
LARGE_BYTES = 32 << 20
"""Minimum bytes of a tensor for packs that need a contract: single elements took 1.35 times as long on an H200."""
LARGE_ROW_BYTES = 24 << 20
"""The same of rows: a batch norm of (32, 256, 28, 28), 25.7 MB, with a residual and a ReLU took 37.4 us on an H200 by
single elements, 27.9 by packs, its gradients 56.2 and 50.4, and 43.6 by clusters that keep a channel on chip."""
LONG_BYTES = 8 << 20
"""Minimum bytes of a row that blocks share to keep it on chip where that needs a contract, in a tensor below
LARGE_BYTES: a LayerNorm over 16 MB took 33.7 us on an H100 from L2, and 30.3 so; a batch norm of 64 channels, 51 MB in
all, 60.4 us on an H200, and 39.9 so."""
MAX_PART_BYTES = 100 * 1024
"""Maximum bytes of a row that a block of 512 threads keeps, two of which share an SM: softmax of rows of 1.5 MB took
1164 us on an H100 by 16 blocks of 98 KB, 1656 us with two reads of each row. A batch norm of 512 channels of 200 KB
took 67.5 us on an H200 by 2 blocks, 79.5 by 4."""
USUAL_PART_BYTES = 80 * 1024
"""The same where a cluster of fewer blocks keeps a row: gradients of a batch norm with a residual, 301 KB per channel,
took 43.6 us on an H200 by 4 blocks of 512 threads, 50.7 by 8."""
MIN_GRID_PART_BYTES = 96 * 1024
"""Minimum bytes of a row per block of a cooperative grid, where rows fill the GPU: with less, its barrier costs more
than the second read."""
MAX_COLUMN_ITEMS = 16
"""Maximum elements of a row that a thread keeps by default where rows lie side by side: 16 loads in flight suffice. Of
16 bits twice as many, by half the threads: a norm over 96 channels took 16.8 us on an H200 so, 18.9 by as many threads
as in f32, an L2 norm over 128 channels 21.2 and 23.8, its gradients 35.3 and 38.9."""
MAX_COLUMN_BLOCK = 512
"""Maximum threads of a default block with rows side by side: sums over a middle dim took 3950 us on an H100 with 32
rows and 128 threads, 3055 us with 128 and 512."""
CACHED_COLUMN_BLOCK = 256
"""The same where rows stay in registers: an RMS norm over 64 channels took 1337 us with 64 rows, 1392 us with 128."""
MIN_PACKS_OF_ROWS = 64
"""Minimum packs per multiprocessor of rows side by side: 16 threads of each fill half of it."""
MIN_LONG_COLUMNS = 512
MIN_LONG_PACKS = 16
"""The same of packs of 16 bytes for columns from `MIN_LONG_COLUMNS` on, which 32 threads share: gradients of a response
norm of (32, 56, 56, 384) took 192.2 us on an H200 so, 203.6 by single elements."""
LARGE_PACKED_BYTES = 8 << 20
"""LARGE_BYTES for packs of rows side by side: gradients of a rotary embedding in bf16, of 67 and 17 MB, took 111.4 us
on an H200 where single elements made the smaller sums, 80.4 with packs of 8 by 16 lanes, 73.6 by 8."""
MAX_WARP_ROW = 2048
"""Maximum columns of a row that a warp adds up in one pass: a binary cross entropy of 4096 x 4096 took 42.0 us on an
H200 so, 35.9 by 128 threads per row and 36.5 by 256, a mean squared error 33.8, 33.3 and 33.1."""
FEW_ITEMS = 16
"""Maximum columns, a constant number, that one thread of a block for all rows takes: a cross entropy of (64, 10) took
2.1 us on an H200 so, in a block of 256 threads, and 2.5 to 2.7 with 16 threads per row in a block of 1024."""
FEW_COLUMNS = 8
"""Maximum columns that one thread of a shared launch adds up: more threads would wait at barriers for a load each."""
FEW_ELEMENTS = 1 << 15
"""Maximum elements of rows side by side for a thread per column where several passes read them: a batch norm of (8192,
1024) took 38.0 us on an H200 with one thread for the 8 parts of each sum, 36.4 with 8."""
COLUMN_WAVES = 8
"""Minimum blocks per multiprocessor for wider blocks with rows side by side."""
MAX_KEPT_EXPONENTIALS = 16384
"""Maximum columns of 16 bits whose exponentials a block keeps in registers."""
ONLINE_THREADS = 512
"""Threads of a longer row, which is read again instead: the gradients of a cross entropy over 32000 classes took 189 us
on an H200 so, 207 us with 1024 threads that keep them."""
LATE_THREADS = 512
"""Threads up to which a row has twice as many where a later pass reads another tensor, whose loads wait for the sums:
gradients of a log-softmax of 8192 columns took 93.8 us on an H200 in bf16 so, 96.9 by 256 threads; layer norm of
f32 rows of 4096 columns, whose weights wait, 65.5 so, 66.3 by 256, and of 2048 columns 65.1 by 256, 65.8 by 128."""
PLAIN_THREADS = 256
"""Threads of a long row without reductions: blocks that share an SM hide what each finds first. Gradients of a cross
entropy with a z term over 32000 classes took 281 us on an H200 so, 315 with 1024 threads."""
HELD = 2
"""The knob's value for rows of which blocks hold what later passes need."""
LATE = 2
"""The knob's value for rows in registers whose lines the L2 cache evicts last, as torch.compile's kernels ask. On
an H200 an RMS norm of 16384 x 4096 in f32 took 126.4 us so and 129.5 without, a softmax of 8192 x 8192 126.2 and 130.1,
a layer norm in bf16 44.1 and 35.6, an RMS norm in bf16 33.7, without bounds checks, and 34.7."""
MIN_ONLINE_COLUMNS = 1024
"""Minimum columns for one pass over memory by default: shorter rows stay in L1 between passes."""
MIN_READ_ONCE_COLUMNS = 16384
"""Minimum columns for one pass over memory instead of several over registers: cross entropies of 4096 x 32000 took 124
and 126 us on an H200 so, 161 and 186 us from registers. Shorter rows were not measured."""
MIN_READ_ONCE_ROWS = 8
"""Minimum rows per multiprocessor for fewer threads of each, with 32 packs per thread: 256 instead of 512 took 248 us
for a KL divergence of 4096 x 32000, 253. Sums alone have 16 packs: KernelBench's of 16384 x 16384 took 674 us with 1024
threads, 555 with 512 and 543 with 256 and 128."""
MIN_WHOLE_ELEMENTS = 1 << 20
"""Minimum elements of rows of a captured length for a variant without bounds checks: with them a thread waits for each
load and store before the next. A layer norm of 4 Mi elements took 22.3 us on an H200 with them, 20.1 without. One
block per row needs them: without, weights are loaded before the sums; 8192 x 4096 took 66.3 us, and 69.4 without."""


def lanes_of_columns(n_rows: int, n_columns: int, vector: int, n_multiprocessors: int, *, reads_again: bool) -> int:
    """Return the threads that share a row, or a pack of `vector` rows, where rows lie side by side: at most 16, or 32
    where all blocks then run at once. Gradients of a batch norm of (8192, 1024) took 57.6 us on an H200 with 16 for its
    sums of parts, 49.1 with 32; those of a response norm with more blocks 203.6 and 210.8."""
    most, per_lane = (8, 4) if vector == 8 else (16, 16)
    if vector < 8 and n_rows <= (64 if vector == 1 else 32) * n_multiprocessors:
        most = 32
    lanes = 1
    while lanes < most and n_rows * lanes < n_multiprocessors * 8192 and n_columns >= per_lane * lanes:
        lanes *= 2
    while reads_again and lanes * 2 <= min(16, n_columns) and n_rows * n_columns <= FEW_ELEMENTS:
        lanes *= 2
    return lanes


def limits_of_packs(n_columns: int, element_bytes: int, widest: int) -> tuple[int, int]:
    """Return the minimum bytes of a pack of rows side by side, of `widest` at most, and packs per multiprocessor. Any
    pack of 16 bits is worth it: loads of single elements fetch as many elements as those of 32 bits, half the bytes."""
    if n_columns < MIN_LONG_COLUMNS:
        return 1, MIN_PACKS_OF_ROWS
    return widest if element_bytes >= 4 else 1, MIN_LONG_PACKS


def power_of_two(value: int) -> int:
    """Return the largest power of two up to `value`, at least 1."""
    return 1 << max(0, value.bit_length() - 1)
