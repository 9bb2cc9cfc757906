"""Layer, group and batch norm, and their backward where the graph keeps it as one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import ZERO, Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, cast
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import number, op, parameter
from kernel_lsp.generate.lowering.builder import Body, Builder, Call, Shape, accumulation_dtype, lowers, read
from kernel_lsp.generate.lowering.reduction import count_of, element_count, elements, variance_over, without


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


# --- group norm: statistics over (N, G, C / G, spatial)


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
    channels = source.shape[1].constant
    if channels is None:
        call.fail("its number of channels must be fixed")
    return (source.shape[0], as_index(n_groups), as_index(channels // n_groups), *source.shape[2:])


def _channel(tensor: Tensor | None, index: Sequence[Index]) -> Scalar | None:
    return None if tensor is None else Access(tensor, (index[1],))


@lowers("native_group_norm_backward")
def _group_norm_backward(call: Call) -> tuple[Tensor | None, ...]:
    """Apply the formulas of ATen's group_norm kernels, with sums over the group for the input and over (N, spatial) for
    the weights."""
    grad, source = call.tensor(0, "grad_out"), call.tensor(1, "input")
    mean, rstd = call.tensor(2, "mean"), call.tensor(3, "rstd")
    weight = call.optional_tensor(4, "weight")
    shape = _grouped_shape(call, source, call.integer(8, "group"))
    wanted = call.raw(9, "output_mask", [True, True, True])
    rule = _GroupNormBackward(call, grad, source, mean, rstd, weight, shape)
    return (
        rule.grad_input() if wanted[0] else None,
        rule.grad_weight() if wanted[1] else None,
        rule.grad_bias() if wanted[2] else None,
    )


class _GroupNormBackward:
    """The three gradients of one group norm."""

    def __init__(
        self,
        call: Call,
        grad: Tensor,
        source: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        shape: Shape,
    ) -> None:
        self.call, self.builder, self.weight = call, call.builder, weight
        self.grad, self.source, self.mean, self.rstd = grad, source, mean, rstd
        self.shape = shape
        self.dtype = accumulation_dtype(source.dtype)

    def grad_input(self) -> Tensor:
        """Return rstd * (dy*w - mean(dy*w) - x_hat * mean(dy*w*x_hat))."""
        grouped_grad = self.builder.reshaped(self.grad, self.shape)
        grouped_source = self.builder.reshaped(self.source, self.shape)
        axes = tuple(range(2, len(self.shape)))

        def weighted(index: tuple[Index, ...]) -> Scalar:
            value = cast(Access(grouped_grad, index), self.dtype)
            channel = index[1] * self.shape[2] + index[2]
            return affine(value, None if self.weight is None else Access(self.weight, (channel,)), None)

        def x_hat(index: tuple[Index, ...]) -> Scalar:
            return self._x_hat(Access(grouped_source, index), (index[0], index[1]))

        centered = _centered(self.builder, self.dtype, self.shape, axes, weighted, x_hat)

        def body(index: tuple[Index, ...]) -> Scalar:
            return op("mul", centered(index), cast(Access(self.rstd, index[:2]), self.dtype))

        result = self.builder.pointwise(self.grad.dtype, self.shape, body, name="grad_input")
        return self.builder.reshaped(result, self.source.shape)

    def grad_weight(self) -> Tensor:
        def body(index: tuple[Index, ...]) -> Scalar:
            group = (index[0], index[1] // self.shape[2])
            return op("mul", cast(Access(self.grad, index), self.dtype), self._x_hat(Access(self.source, index), group))

        return self._over_channel(body, "grad_weight", 1)

    def grad_bias(self) -> Tensor:
        return self._over_channel(elements(self.grad, self.dtype), "grad_bias", 2)

    def _over_channel(self, body: Callable[..., Scalar], name: str, item: int) -> Tensor:
        axes = (0, *range(2, len(self.source.shape)))
        total = self.builder.reduction("sum", self.dtype, self.source.shape, axes, body, name=name)
        dtype = self.call.dtype(item)
        return self.builder.pointwise(dtype, total.shape, lambda index: Access(total, index), name=name)

    def _x_hat(self, value: Scalar, group: Sequence[Index]) -> Scalar:
        mean, rstd = (cast(Access(statistic, group), self.dtype) for statistic in (self.mean, self.rstd))
        return normalized(value, mean, rstd)


@lowers("native_layer_norm_backward")
def _layer_norm_backward(call: Call) -> tuple[Tensor | None, ...]:
    grad, source = call.tensor(0, "grad_out"), call.tensor(1, "input")
    mean, rstd, weight = call.tensor(3, "mean"), call.tensor(4, "rstd"), call.optional_tensor(5, "weight")
    wanted = call.raw(7, "output_mask", [True, True, True])
    dtype = accumulation_dtype(source.dtype)
    n_outer = len(source.shape) - len(call.raw(2, "normalized_shape"))
    axes = tuple(range(n_outer, len(source.shape)))

    def x_hat(index: Sequence[Index]) -> Scalar:
        statistics = (cast(read(tensor, _padded(index, axes)), dtype) for tensor in (mean, rstd))
        return normalized(Access(source, index), *statistics)

    def weighted(index: Sequence[Index]) -> Scalar:
        return affine(cast(Access(grad, index), dtype), _read(weight, index), None)

    results: list[Tensor | None] = [None, None, None]
    if wanted[0]:
        centered = _centered(call.builder, dtype, source.shape, axes, weighted, x_hat)

        def body(index: tuple[Index, ...]) -> Scalar:
            return op("mul", centered(index), cast(read(rstd, _padded(index, axes)), dtype))

        results[0] = call.builder.pointwise(call.dtype(0), source.shape, body, name="grad_input")
    outer, grad_at = tuple(range(n_outer)), elements(grad, dtype)
    if wanted[1] and weight is not None:

        def weight_body(index: tuple[Index, ...]) -> Scalar:
            return op("mul", grad_at(index), x_hat(index))

        results[1] = call.builder.reduction("sum", dtype, source.shape, outer, weight_body, name="grad_weight")
    if wanted[2]:
        results[2] = call.builder.reduction("sum", dtype, source.shape, outer, grad_at, name="grad_bias")
    return tuple(_as_dtype(call, tensor, item) for item, tensor in enumerate(results))


def _centered(builder: Builder, dtype: DType, shape: Shape, axes: Sequence[int], weighted: Body, x_hat: Body) -> Body:
    """Return dy*w - mean(dy*w) - x_hat * mean(dy*w*x_hat), with means over axes."""

    def product_body(index: tuple[Index, ...]) -> Scalar:
        return op("mul", weighted(index), x_hat(index))

    sum_grad = builder.reduction("sum", dtype, shape, axes, weighted, name="sum_grad")
    sum_product = builder.reduction("sum", dtype, shape, axes, product_body, name="sum_grad_x")
    count = count_of(element_count(shape, axes), dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        kept = without(index, axes)
        mean_grad, mean_product = (op("div", Access(total, kept), count) for total in (sum_grad, sum_product))
        return op("sub", op("sub", weighted(index), mean_grad), op("mul", x_hat(index), mean_product))

    return body


def _padded(index: Sequence[Index], axes: Sequence[int]) -> list[Index]:
    return [ZERO if axis in axes else position for axis, position in enumerate(index)]


def _as_dtype(call: Call, tensor: Tensor | None, item: int) -> Tensor | None:
    if tensor is None or tensor.dtype == call.dtype(item):
        return tensor
    dtype = call.dtype(item)
    return call.builder.pointwise(dtype, tensor.shape, lambda index: Access(tensor, index), name=tensor.name)


# --- batch norm


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


@lowers("native_batch_norm_backward")
def _batch_norm_backward(call: Call) -> tuple[Tensor | None, ...]:
    """Return rstd * w * (dy - mean(dy) - x_hat * mean(dy * x_hat)) in training; rstd * w * dy in inference."""
    grad, source, weight = call.tensor(0, "grad_out"), call.tensor(1, "input"), call.optional_tensor(2, "weight")
    is_training = bool(call.raw(7, "train"))
    dtype = accumulation_dtype(source.dtype)
    axes = (0, *range(2, len(source.shape)))
    if is_training:
        mean, rstd = call.tensor(5, "save_mean"), call.tensor(6, "save_invstd")
    else:
        mean = call.tensor(3, "running_mean")
        rstd = inverse_deviation(call.builder, call.tensor(4, "running_var"), parameter(call, 8, "eps"))

    def x_hat(index: Sequence[Index]) -> Scalar:
        statistics = (cast(Access(tensor, (index[1],)), dtype) for tensor in (mean, rstd))
        return normalized(Access(source, index), *statistics)

    grad_at = elements(grad, dtype)

    def grad_product(index: tuple[Index, ...]) -> Scalar:
        return op("mul", grad_at(index), x_hat(index))

    sum_grad = call.builder.reduction("sum", dtype, source.shape, axes, grad_at, name="grad_bias")
    sum_product = call.builder.reduction("sum", dtype, source.shape, axes, grad_product, name="grad_weight")
    count = count_of(element_count(source.shape, axes), dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        channel = (index[1],)
        value = grad_at(index)
        if is_training:
            mean_grad, mean_product = (op("div", Access(total, channel), count) for total in (sum_grad, sum_product))
            value = op("sub", op("sub", value, mean_grad), op("mul", x_hat(index), mean_product))
        value = op("mul", value, cast(Access(rstd, channel), dtype))
        return affine(value, _channel(weight, index), None)

    grad_input = call.builder.pointwise(call.dtype(0), source.shape, body, name="grad_input")
    has = [entry is not None for entry in (*call.node.types, None, None)]
    return (
        grad_input,
        _as_dtype(call, sum_product, 1) if has[1] else None,
        _as_dtype(call, sum_grad, 2) if has[2] else None,
    )
