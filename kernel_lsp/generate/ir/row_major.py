"""Convert between positions in row-major arrays: one index per dim, or one flat position."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.generate.ir.index import ZERO, Index, product


def ravel(index: Sequence[Index], shape: Sequence[Index]) -> Index:
    """Return the flat position in a row-major array of `shape`."""
    flat = ZERO
    for position, size in zip(index, shape, strict=True):
        flat = flat * size + position
    return flat


def unravel(flat: Index, shape: Sequence[Index]) -> tuple[Index, ...]:
    """Return the index of a flat position in a row-major array of `shape`."""
    index: list[Index] = []
    for axis in range(len(shape) - 1, -1, -1):
        is_leading = all(size.constant == 1 for size in shape[:axis])
        index.append(flat if is_leading and shape[axis].constant != 1 else flat % shape[axis])
        flat = ZERO if is_leading else flat // shape[axis]
    return tuple(reversed(index))


def unravel_safe(flat: Index, shape: Sequence[Index]) -> tuple[Index, ...]:
    """Return the same as `unravel`, with 0 for every dim of size 1."""
    kept = [size for size in shape if size.constant != 1]
    positions = iter(unravel(flat, kept))
    return tuple(ZERO if size.constant == 1 else next(positions) for size in shape)


def unravel_like(flat: Index, seed_shape: Sequence[Index], shape: Sequence[Index]) -> tuple[Index, ...]:
    """Return the index at flat position of `shape`, through `seed_shape` where the two differ."""
    if tuple(seed_shape) == tuple(shape):
        return unravel_safe(flat, shape)
    return reshape(unravel_safe(flat, seed_shape), seed_shape, shape)


def reshape(index: Sequence[Index], shape: Sequence[Index], source: Sequence[Index]) -> tuple[Index, ...]:
    """Return the index into the row-major reshape `source` of element `index` of an array of `shape`.

    Runs of dims with equal products are matched first, so that untouched dims keep their index.
    """
    taken = [(position, size) for position, size in zip(index, shape, strict=True) if size.constant != 1]
    kept = [(axis, size) for axis, size in enumerate(source) if size.constant != 1]
    result = [ZERO] * len(source)
    while taken or kept:
        n_taken, n_kept = _matching_run([size for _, size in taken], [size for _, size in kept])
        run, sizes = taken[:n_taken], [size for _, size in kept[:n_kept]]
        flat = ravel([position for position, _ in run], [size for _, size in run])
        for (axis, _), position in zip(kept[:n_kept], unravel(flat, sizes), strict=True):
            result[axis] = position
        taken, kept = taken[n_taken:], kept[n_kept:]
    return tuple(result)


# --- matching dims


def _matching_run(left: list[Index], right: list[Index]) -> tuple[int, int]:
    """Return the lengths of the shortest prefixes with equal products; of both lists when no shorter ones match."""
    for n_left in range(1, len(left) + 1):
        for n_right in range(1, len(right) + 1):
            if product(left[:n_left]) == product(right[:n_right]):
                return n_left, n_right
    return len(left), len(right)
