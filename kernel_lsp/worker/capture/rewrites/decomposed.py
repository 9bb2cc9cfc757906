"""Operators written with others, for which the generator has rules. Autograd differentiates these forms, so that none
of them needs a rule for its gradient. References keep the operators themselves."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from torch._decomp import decomposition_table

CUBIC, NEAREST = 2, 1
"""Interpolation modes of `grid_sampler`; 0 is linear."""
BORDER, REFLECTION = 1, 2
"""Its padding modes; 0 is zeros."""
SUM, MEAN, MAX = 0, 1, 2
"""Modes of `embedding_bag`."""
BAGS = (torch.ops.aten.embedding_bag.default, torch.ops.aten.embedding_bag.padding_idx)


def _computed_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type that 16-bit numbers are computed in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def grid_sampler(
    source: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, aligns_corners: bool
) -> torch.Tensor:
    """Return (N, C, *out) samples of `source` (N, C, *in) at `grid` (N, *out, n), whose coordinates are last dim
    first."""
    dtype, sizes = _computed_type(source.dtype), source.shape[2:]
    axes = [
        _corners(grid[..., -1 - axis].to(dtype).unsqueeze(1), size, mode, padding, aligns_corners)
        for axis, size in enumerate(sizes)
    ]
    leading = [
        torch.arange(size, device=source.device).view([-1 if dim == axis else 1 for dim in range(source.dim())])
        for axis, size in enumerate(source.shape[:2])
    ]
    terms = []
    for corner in itertools.product(*axes):
        inside = functools.reduce(operator.and_, ((at >= 0) & (at < size) for (at, _), size in zip(corner, sizes)))
        shares = [share for _, share in corner if share is not None]
        places = [torch.where(inside, at, 0).to(torch.int64) for at, _ in corner]
        # Masked before they are multiplied: neither a sum nor a gradient may have 0 * NaN.
        factors = [torch.where(inside, factor, 0) for factor in (source[(*leading, *places)].to(dtype), *shares)]
        terms.append(functools.reduce(operator.mul, factors))
    return functools.reduce(operator.add, terms).to(source.dtype)


def _corners(
    at: torch.Tensor, size: int, mode: int, padding: int, aligns_corners: bool
) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Return the elements of one dim that coordinates from -1 to 1 lie between, with their shares."""
    place = (at + 1) / 2 * (size - 1) if aligns_corners else ((at + 1) * size - 1) / 2
    if mode == CUBIC:
        low = place.floor()
        steps = [(low + step, (place - low - step).abs()) for step in (-1, 0, 1, 2)]
        return [(_padded(each, size, padding, aligns_corners), _cubic(away)) for each, away in steps]
    place = _padded(place, size, padding, aligns_corners)
    low = place.floor()
    return [(place.round(), None)] if mode == NEAREST else [(low, low + 1 - place), (low + 1, place - low)]


def _cubic(away: torch.Tensor) -> torch.Tensor:
    """Return the share of an element `away` from a place, at most 2: convolution with Keys' kernel of -3/4."""
    near = (1.25 * away - 2.25) * away * away + 1
    far = ((-0.75 * away + 3.75) * away - 6) * away + 3
    return torch.where(away <= 1, near, far)


def _padded(place: torch.Tensor, size: int, padding: int, aligns_corners: bool) -> torch.Tensor:
    """Return the places that stand for those outside of a dim."""
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if aligns_corners else (-0.5, size)
        if span == 0:
            return torch.zeros_like(place)
        away = (place - low).abs()
        rest, n_turns = torch.fmod(away, span), torch.floor(away / span)
        place = torch.where(torch.fmod(n_turns, 2) == 0, rest + low, span - rest + low)
    if padding not in (BORDER, REFLECTION):
        return place
    return torch.where(place.isnan(), 0, place).clamp(0, size - 1)


def _antialiased(
    share: Callable[[torch.Tensor], torch.Tensor],
    reach: int,
    source: torch.Tensor,
    sizes: Sequence[int] | None,
    aligns_corners: bool,
    scales: Sequence[float] | None = None,
) -> torch.Tensor:
    """Return images (N, C, H, W) resized along W, then H. An element has a `share` of those up to `reach` away, in
    output positions where there are fewer of them."""
    result = source.to(_computed_type(source.dtype))
    if sizes is None:
        assert scales is not None
        sizes = [torch.sym_int(n * scale) for n, scale in zip(source.shape[-2:], scales)]
    for axis in (-1, -2):
        n, n_out, scale = source.shape[axis], sizes[axis], None if scales is None else scales[axis]
        before, after = (torch.scalar_tensor(each, dtype=result.dtype, device=source.device) for each in (n, n_out))
        ratio = before / after if scale is None else torch.full_like(after, 1 / scale)
        if aligns_corners:
            ratio = torch.where(after > 1, (before - 1) / (after - 1).clamp(min=1), 0)
        width = ratio.clamp(min=1)
        taps = torch.arange(2 * reach * (n // torch.sym_max(n_out - 1, 1) + 1) + 1, device=source.device)
        centre = (torch.arange(n_out, dtype=result.dtype, device=source.device) + 0.5)[:, None] * ratio
        first, end = ((centre + side * width + 0.5).to(torch.int64) for side in (-reach, reach))
        place = first.clamp(min=0) + taps
        inside = place < end.clamp(max=n)
        weight = torch.where(inside, share(((place - centre + 0.5) / width).abs()), 0)
        rows = result.movedim(axis, -1)[..., torch.where(inside, place, 0)]
        result = (rows * (weight / weight.sum(-1, keepdim=True))).sum(-1).movedim(-1, axis)
    return result.to(source.dtype)


def _linear(away: torch.Tensor) -> torch.Tensor:
    return (1 - away).clamp(min=0)


def _smooth(away: torch.Tensor) -> torch.Tensor:
    """Return the share of Keys' kernel of -1/2, which antialiased resizing uses."""
    near, far = (1.5 * away - 2.5) * away * away + 1, ((-0.5 * away + 2.5) * away - 4) * away + 2
    return torch.where(away < 1, near, torch.where(away < 2, far, 0))


def histc(source: torch.Tensor, n_bins: int = 100, low: Any = 0, high: Any = 0) -> torch.Tensor:
    """Return the (n_bins,) counts of the elements between `low` and `high`, or between the extremes where these are
    equal."""
    if low == high:
        low, high = source.amin(), source.amax()
        is_one = low == high
        low, high = torch.where(is_one, low - 1, low), torch.where(is_one, high + 1, high)
    inside = (source >= low) & (source <= high)
    place = ((source - low) * n_bins / (high - low)).to(torch.int64).clamp(0, n_bins - 1)
    counts = source.new_zeros(n_bins)
    return counts.index_add(0, torch.where(inside, place, 0).flatten(), inside.flatten().to(source.dtype))


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scales_by_frequency: bool = False,
    mode: int = SUM,
    is_sparse: bool = False,
    factors: torch.Tensor | None = None,
    has_end: bool = False,
    padding: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the (bags, width) combined rows, and the bag of each index, the bags' sizes and again those: callers use
    the first alone."""
    offsets = offsets[: offsets.shape[0] - has_end].to(torch.int64)
    n_bags = offsets.shape[0]
    starts = torch.zeros(indices.shape[0] + 1, dtype=torch.int64, device=indices.device)
    bag = starts.index_add(0, offsets, torch.ones_like(starts[:n_bags])).cumsum(0)[:-1] - 1
    dtype = _computed_type(weight.dtype)
    rows = torch.nn.functional.embedding(indices, weight).to(dtype)
    counted = torch.ones_like(indices, dtype=dtype)
    if padding is not None:
        counted = _is_counted(weight, indices, padding).to(dtype)
    sizes = weight.new_zeros(n_bags, dtype=dtype).index_add(0, bag, counted)
    if mode == MAX:
        combined = torch.where(sizes[:, None] > 0, _highest(rows, offsets, bag, counted), 0)
    else:
        rows = rows * (counted if factors is None else counted * factors)[:, None]
        combined = weight.new_zeros((n_bags, weight.shape[1]), dtype=dtype).index_add(0, bag, rows)
        combined = combined / sizes.clamp(min=1)[:, None] if mode == MEAN else combined
    return combined.to(weight.dtype), bag, sizes.to(indices.dtype), sizes.to(indices.dtype)


def _is_counted(weight: torch.Tensor, indices: torch.Tensor, padding: int) -> torch.Tensor:
    """Return where an index is not the padding's, which counts from the last row if it is negative."""
    return indices != (padding if padding >= 0 else padding + weight.shape[0])


def embedding_rows(
    weight: torch.Tensor,
    indices: torch.Tensor,
    scales_by_frequency: bool = False,
    mode: int = SUM,
    is_sparse: bool = False,
    factors: torch.Tensor | None = None,
    has_end: bool = False,
    padding: int | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Return the (bags, width) result of `embedding_bag` of bags that are the rows of `indices`, without its others."""
    dtype = _computed_type(weight.dtype)
    rows = torch.nn.functional.embedding(indices, weight).to(dtype)
    is_counted = torch.ones_like(indices, dtype=torch.bool)
    if padding is not None:
        is_counted = _is_counted(weight, indices, padding)
    if mode == MAX:
        is_first = torch.arange(indices.shape[1], device=indices.device)[:, None] == 0
        rows = torch.where(is_counted[..., None] & (is_first | ~rows.isnan()), rows, -torch.inf)
        return torch.where(is_counted.any(1, True), rows.max(1).values, 0).to(weight.dtype), None, None, None
    shares = is_counted.to(dtype) if factors is None else is_counted * factors.view(indices.shape)
    total = (rows * shares[..., None]).sum(1)
    total = total / is_counted.sum(1, True).clamp(min=1) if mode == MEAN else total
    return total.to(weight.dtype), None, None, None


@contextlib.contextmanager
def bags_as_rows(graph: Any) -> Iterator[None]:
    """Have bags of equal lengths, which PyTorch flattens, computed as rows while the graph is traced."""
    found = [(node, rows) for node in graph.nodes if (rows := _rows_of_bags(node)) is not None]
    before = [(node, node.target, node.args) for node, _ in found]
    for node, rows in found:
        node.target, node.args = embedding_rows, (node.args[0], rows, *node.args[3:])
    try:
        yield
    finally:
        for node, target, arguments in before:
            node.target, node.args = target, arguments


def _rows_of_bags(node: Any) -> Any:
    """Return the (bags, length) indices whose rows are the bags; None for other nodes and bags."""
    if node.target not in BAGS or any(user.args[1] != 0 for user in node.users if user.users):
        return None
    flat, offsets = node.args[1:3]
    if flat.target is not torch.ops.aten.reshape.default or offsets.target is not torch.ops.aten.arange.start_step:
        return None
    rows, first, step = flat.args[0], offsets.args[0], offsets.args[2]
    shape = rows.meta["val"].shape
    length = step.meta["val"] if isinstance(step, torch.fx.Node) else step
    return rows if len(shape) == 2 and first == 0 and str(length) == str(shape[1]) else None


def _highest(rows: torch.Tensor, offsets: torch.Tensor, bag: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Return the (bags, width) largest counted rows, of equal ones the first, and NaN where that of a bag's first row
    is: PyTorch compares with it."""
    places = torch.arange(rows.shape[0], device=rows.device)
    is_skipped = (counted == 0)[:, None] | (rows.isnan() & (places != offsets[bag])[:, None])
    rows, of_row = torch.where(is_skipped, -torch.inf, rows), bag[:, None].expand_as(rows)
    shape, last = (offsets.shape[0], rows.shape[1]), rows.shape[0] - 1
    highest = torch.full(shape, -torch.inf, dtype=rows.dtype, device=rows.device)
    highest = highest.scatter_reduce(0, of_row, rows.detach(), "amax")
    is_highest = (rows == highest[bag]) | rows.isnan()
    first = torch.full(shape, last, device=rows.device)
    first = first.scatter_reduce(0, of_row, torch.where(is_highest, places[:, None], last), "amin")
    return rows.gather(0, first)


def gru_cell(value: torch.Tensor, state: torch.Tensor, *parameters: Any) -> torch.Tensor:
    """Return the (batch, units) next state."""
    of_value, of_state = _projections(value, state, *parameters)
    reset, update, new = of_value.chunk(3, 1)
    reset_state, update_state, new_state = of_state.chunk(3, 1)
    candidate = torch.tanh(new + torch.sigmoid(reset + reset_state) * new_state)
    return candidate + torch.sigmoid(update + update_state) * (state - candidate)


def lstm_cell(
    value: torch.Tensor, states: Sequence[torch.Tensor], *parameters: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next hidden state and cell state, (batch, units) each."""
    of_value, of_state = _projections(value, states[0], *parameters)
    taken, kept, new, shown = (of_value + of_state).chunk(4, 1)
    cell = torch.sigmoid(kept) * states[1] + torch.sigmoid(taken) * torch.tanh(new)
    return torch.sigmoid(shown) * torch.tanh(cell), cell


def _projections(
    value: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    state_weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    state_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    linear = torch.nn.functional.linear
    return linear(value, weight, bias), linear(state, state_weight, state_bias)


def weight_norm(direction: torch.Tensor, length: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return the weight whose slices along `dim` have the direction's direction and the given length."""
    others = [axis for axis in range(direction.dim()) if axis != dim % direction.dim()]
    axes = others if dim != -1 else list(range(direction.dim()))
    return direction * (length / torch.linalg.vector_norm(direction, 2, axes, keepdim=True))


def cdist(left: torch.Tensor, right: torch.Tensor, p: float = 2.0, compute_mode: int | None = None) -> torch.Tensor:
    """Return the (..., rows, rows) distances. The norm's gradient is 0 where a distance is."""
    return torch.linalg.vector_norm(left.unsqueeze(-2) - right.unsqueeze(-3), p, -1)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    own = {
        aten.grid_sampler.default: grid_sampler,
        aten.histc.default: histc,
        aten._upsample_bilinear2d_aa.vec: functools.partial(_antialiased, _linear, 1),
        aten._upsample_bicubic2d_aa.vec: functools.partial(_antialiased, _smooth, 2),
        **dict.fromkeys(BAGS, embedding_bag),
    }
    names = ("upsample_bicubic2d", *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)))
    known = [getattr(getattr(aten, name, None), "vec", None) for name in names]
    return own | {operator: decomposition_table[operator] for operator in known if operator in decomposition_table}


DECOMPOSED = _decompositions()
"""By operator of the user's code, as `torch.export` has it."""
FOR_AUTOGRAD: dict[Any, Callable[..., Any]] = {
    **DECOMPOSED,
    torch.ops.aten._weight_norm.default: weight_norm,
    torch.ops.aten.affine_grid_generator.default: decomposition_table[torch.ops.aten.affine_grid_generator.default],
    torch.ops.aten.cdist.default: cdist,
    torch.ops.aten.gru_cell.default: gru_cell,
    torch.ops.aten.lstm_cell.default: lstm_cell,
}
"""Also those of which PyTorch's own code has no gradient to trace: it changes tensors in place, or asks for concrete
sizes."""
