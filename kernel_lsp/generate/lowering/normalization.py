"""Layer, group and batch norm, and their backward where the graph keeps it as one call."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, cast
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import number, op, parameter
from kernel_lsp.generate.lowering.builder import Builder, Call, Shape, accumulation_dtype, lowers, read
from kernel_lsp.generate.lowering.reduction import count_of, element_count, variance_over, without


def inverse_deviation(builder: Builder, variance: Tensor, epsilon: float | Scalar) -> Tensor:
    """Return 1 / sqrt(variance + epsilon)."""

    def body(index: tuple[Index, ...]) -> Scalar:
        value = Access(variance, index)
        return op("rsqrt", op("add", value, number(epsilon, value)))

    return builder.pointwise(variance.dtype, variance.shape, body, name="rstd")


@lowers("native_layer_norm")
def _layer_norm(call: Call) -> tuple[Tensor, ...]:
    source = call.tensor(0, "input")
    weight, bias = call.optional_tensor(2, "weight"), call.optional_tensor(3, "bias")
    n_normalized = len(call.raw(1, "normalized_shape"))
    axes = tuple(range(len(source.shape) - n_normalized, len(source.shape)))
    variance, mean = variance_over(call.builder, source, axes)
    rstd = inverse_deviation(call.builder, variance, parameter(call, 4, "eps"))

    def body(index: tuple[Index, ...]) -> Scalar:
        kept = without(index, axes)
        value = normalized(Access(source, index), Access(mean, kept), Access(rstd, kept))
        return affine(value, _read(weight, index), _read(bias, index))

    out = call.builder.pointwise(call.dtype(0), source.shape, body)
    return out, _statistic(call, mean, 1), _statistic(call, rstd, 2)


def normalized(value: Scalar, mean: Scalar, rstd: Scalar) -> Scalar:
    return op("mul", op("sub", cast(value, mean.dtype), mean), rstd)


def affine(value: Scalar, weight: Scalar | None, bias: Scalar | None) -> Scalar:
    if weight is not None:
        value = op("mul", value, cast(weight, value.dtype))
    return value if bias is None else op("add", value, cast(bias, value.dtype))


def _read(tensor: Tensor | None, index: Sequence[Index]) -> Scalar | None:
    return None if tensor is None else read(tensor, index)


def _statistic(call: Call, statistic: Tensor, item: int) -> Tensor:
    shape = call.shape(item)
    if len(shape) != len(statistic.shape):
        statistic = call.builder.reshaped(statistic, shape)
    name = statistic.name
    return call.builder.pointwise(call.dtype(item), shape, lambda index: Access(statistic, index), name=name)


@lowers("_fused_rms_norm", "rms_norm")
def _rms_norm(call: Call) -> Tensor | tuple[Tensor, ...]:
    source, weight = call.tensor(0, "input"), call.optional_tensor(2, "weight")
    axes = tuple(range(len(source.shape) - len(call.raw(1, "normalized_shape")), len(source.shape)))
    dtype = accumulation_dtype(source.dtype)
    epsilon = parameter(call, 3, "eps") if call.is_given(3, "eps") else None
    smallest = 2.220446049250313e-16 if dtype == DType.F64 else 1.1920928955078125e-07

    def square(index: tuple[Index, ...]) -> Scalar:
        value = cast(Access(source, index), dtype)
        return op("mul", value, value)

    total = call.builder.reduction("sum", dtype, source.shape, axes, square, name="squares")
    count = count_of(element_count(source.shape, axes), dtype)
    mean = call.builder.pointwise(dtype, total.shape, lambda index: op("div", Access(total, index), count), name="mean")
    rstd = inverse_deviation(call.builder, mean, smallest if epsilon is None else epsilon)

    def body(index: tuple[Index, ...]) -> Scalar:
        value = op("mul", cast(Access(source, index), dtype), Access(rstd, without(index, axes)))
        return affine(value, _read(weight, index), None)

    out = call.builder.pointwise(call.dtype(0), source.shape, body)
    return (out, _statistic(call, rstd, 1)) if len(call.node.types) > 1 else out


@lowers("native_group_norm")
def _group_norm(call: Call) -> tuple[Tensor, ...]:
    source = call.tensor(0, "input")
    weight, bias = call.optional_tensor(1, "weight"), call.optional_tensor(2, "bias")
    grouped = call.builder.reshaped(source, _grouped_shape(call, source, call.integer(6, "group")))
    axes = tuple(range(2, len(grouped.shape)))
    variance, mean = variance_over(call.builder, grouped, axes)
    rstd = inverse_deviation(call.builder, variance, parameter(call, 7, "eps"))
    per_group = grouped.shape[2]

    def body(index: tuple[Index, ...]) -> Scalar:
        kept = (index[0], index[1] // per_group)
        value = normalized(Access(source, index), Access(mean, kept), Access(rstd, kept))
        return affine(value, _channel(weight, index), _channel(bias, index))

    out = call.builder.pointwise(call.dtype(0), source.shape, body)
    return out, _statistic(call, mean, 1), _statistic(call, rstd, 2)


def _grouped_shape(call: Call, source: Tensor, n_groups: int) -> Shape:
    """Return the shape with a dim of groups. A single group has all channels, of any number."""
    channels = source.shape[1]
    if n_groups > 1 and channels.constant is None:
        call.fail("its number of channels must be fixed")
    return (source.shape[0], as_index(n_groups), channels // as_index(n_groups), *source.shape[2:])


def _channel(tensor: Tensor | None, index: Sequence[Index]) -> Scalar | None:
    return None if tensor is None else Access(tensor, (index[1],))


@lowers("_native_batch_norm_legit_no_training")
def _batch_norm_inference(call: Call) -> tuple[Tensor | None, ...]:
    return (_batch_norm_with(call, call.tensor(3, "running_mean"), call.tensor(4, "running_var"), 6), None, None)


def _batch_norm_with(call: Call, mean: Tensor, variance: Tensor, epsilon_position: int) -> Tensor:
    source, weight, bias = call.tensor(0, "input"), call.optional_tensor(1, "weight"), call.optional_tensor(2, "bias")
    rstd = inverse_deviation(call.builder, variance, parameter(call, epsilon_position, "eps"))

    def body(index: tuple[Index, ...]) -> Scalar:
        channel = (index[1],)
        value = normalized(_wide(Access(source, index)), _wide(Access(mean, channel)), _wide(Access(rstd, channel)))
        return affine(value, _channel(weight, index), _channel(bias, index))

    return call.builder.pointwise(call.dtype(0), source.shape, body)


def _wide(value: Scalar) -> Scalar:
    return cast(value, accumulation_dtype(value.dtype))


@lowers(
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "native_batch_norm",
    "_batch_norm_with_update_functional",
)
def _batch_norm(call: Call) -> tuple[Tensor | None, ...]:
    """Normalize with batch statistics in training; ``functional`` also returns the updated running statistics."""
    has_running = not call.node.op.endswith("no_stats")
    flags = 5 if has_running else 3
    if not call.raw(flags, "training"):
        mean, variance = call.tensor(3, "running_mean"), call.tensor(4, "running_var")
        return (_batch_norm_with(call, mean, variance, flags + 2), None, None, mean, variance)
    source = call.tensor(0, "input")
    axes = (0, *range(2, len(source.shape)))
    variance, mean = variance_over(call.builder, source, axes)
    out = _batch_norm_with(call, mean, variance, flags + 2)
    saved = inverse_deviation(call.builder, variance, parameter(call, flags + 2, "eps"))
    results: list[Tensor | None] = [out, mean, saved]
    if has_running and "functional" in call.node.op:
        results += _running_statistics(call, mean, variance, axes)
    return tuple(results)


def _running_statistics(call: Call, mean: Tensor, variance: Tensor, axes: Sequence[int]) -> list[Tensor]:
    """Return (1 - momentum) * running + momentum * batch, with the unbiased variance."""
    momentum = float(call.number(6, "momentum"))
    count = count_of(element_count(call.tensor(0).shape, axes), variance.dtype)
    unbiased = op("div", count, op("sub", count, number(1, count)))
    updated = []
    for position, batch, factor in ((3, mean, None), (4, variance, unbiased)):
        running = call.tensor(position, "running")

        def body(
            index: tuple[Index, ...], running: Tensor = running, batch: Tensor = batch, factor: Scalar | None = factor
        ) -> Scalar:
            value: Scalar = Access(batch, index)
            value = value if factor is None else op("mul", value, factor)
            old = cast(Access(running, index), value.dtype)
            return op("add", op("mul", number(momentum, value), value), op("mul", number(1 - momentum, value), old))

        updated.append(call.builder.pointwise(running.dtype, running.shape, body, name=running.name))
    return updated
