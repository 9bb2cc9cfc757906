"""Tables: what layers of `torch.nn` and functions of tensors require of the shapes that they are called with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.source.inference.arrays import Array, Dim, array_of, join, match, same_shape
from kernel_lsp.source.inference.values import UNKNOWN

SEQUENCE_RANK, IMAGE_RANK = 3, 4
ATTENTION_HINTS = (2, 8, 512, 64)
"""Example sizes of queries: batch, heads, sequence, head."""
TOKENS_HINTS = (8, 512)
DEFAULT_EXTENT = 3
"""Extent of a convolution's weight that is itself an input."""


CLASS_LOSSES = ("CrossEntropyLoss", "NLLLoss")
"""Losses whose target has the numbers of classes."""


@dataclass(frozen=True)
class Layer:
    """A layer of `torch.nn` as constructed: `values` are the arguments whose values are known."""

    name: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class LayerRule:
    """Requirements of one layer. `size` names the constructor's argument that fixes the dim `axis`, `out` the one that
    replaces it in the result. Without `keeps` the other dims of the result are new."""

    parameters: tuple[str, ...] = ()
    rank: int | None = None
    axis: int = -1
    size: str = ""
    out: str = ""
    keeps: bool = True
    dtype: str = "f32"
    below: str = ""
    """Argument that bounds the values of an index."""
    n_results: int = 1


_CONVOLUTION = ("in_channels", "out_channels", "kernel_size")
_BATCH_NORM, _RECURRENT = ("num_features",), ("input_size", "hidden_size")
_EMBEDDING = ("num_embeddings", "embedding_dim")
LAYERS: dict[str, LayerRule] = {
    "Linear": LayerRule(("in_features", "out_features"), size="in_features", out="out_features"),
    "LayerNorm": LayerRule(("normalized_shape",), size="normalized_shape"),
    "RMSNorm": LayerRule(("normalized_shape",), size="normalized_shape"),
    "GroupNorm": LayerRule(("num_groups", "num_channels"), IMAGE_RANK, 1, "num_channels"),
    "BatchNorm1d": LayerRule(_BATCH_NORM, 2, 1, "num_features"),
    "InstanceNorm1d": LayerRule(_BATCH_NORM, SEQUENCE_RANK, 1, "num_features"),
    "Embedding": LayerRule(_EMBEDDING, 2, out="embedding_dim", dtype="i64", below="num_embeddings"),
    "EmbeddingBag": LayerRule(_EMBEDDING, 2, out="embedding_dim", keeps=False, dtype="i64", below="num_embeddings"),
    **{
        name: LayerRule(_RECURRENT, SEQUENCE_RANK, -1, "input_size", "hidden_size", n_results=2)
        for name in ("RNN", "LSTM", "GRU")
    },
    **{
        f"{name}Cell": LayerRule(_RECURRENT, 2, -1, "input_size", "hidden_size", n_results=2 if name == "LSTM" else 1)
        for name in ("RNN", "LSTM", "GRU")
    },
    "MultiheadAttention": LayerRule(("embed_dim", "num_heads"), SEQUENCE_RANK, -1, "embed_dim", n_results=2),
    "TransformerEncoderLayer": LayerRule(("d_model", "nhead"), SEQUENCE_RANK, -1, "d_model"),
    "Flatten": LayerRule(keeps=False, dtype=""),
    "Unflatten": LayerRule(keeps=False, dtype=""),
}
for _n in (1, 2, 3):
    for _name in (f"Conv{_n}d", f"ConvTranspose{_n}d"):
        LAYERS[_name] = LayerRule(_CONVOLUTION, _n + 2, 1, "in_channels", "out_channels", keeps=False)
    for _name in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "LPPool"):
        LAYERS[f"{_name}{_n}d"] = LayerRule(rank=_n + 2, axis=1, keeps=False)
    if _n > 1:
        for _name in ("BatchNorm", "InstanceNorm"):
            LAYERS[f"{_name}{_n}d"] = LayerRule(_BATCH_NORM, _n + 2, 1, "num_features")
KEEPING_LAYERS = frozenset({
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "ReLU", "ReLU6", "LeakyReLU", "PReLU",
    "GELU", "SiLU", "Mish", "ELU", "CELU", "SELU", "Sigmoid", "Tanh", "Softplus", "Softsign", "Hardswish",
    "Hardsigmoid", "Hardtanh", "LogSigmoid", "Softmax", "LogSoftmax", "Identity", "Threshold",
})  # fmt: skip
"""Layers whose result has the shape of their input, whatever that is."""


def apply_layer(layer: Layer, arguments: Sequence[object]) -> object:
    """Return the result of a layer, and record what it requires of its inputs."""
    arrays = [value for value in arguments if isinstance(value, Array)]
    if not arrays or layer.name in KEEPING_LAYERS:
        return arrays[0] if arrays else None
    rule = LAYERS.get(layer.name)
    if rule is None:
        if layer.name.endswith("Loss") and len(arrays) > 1:
            (_cross_entropy if layer.name in CLASS_LOSSES else elementwise)(*arrays[:2])
        return None
    for array in arrays:
        _require(rule, layer.values, array)
    results = [_result(rule, layer.values, arrays[0])] + [None] * (rule.n_results - 1)
    return results if rule.n_results > 1 else results[0]


def _require(rule: LayerRule, values: Mapping[str, object], array: Array) -> None:
    array.elements.dtype = array.elements.dtype or rule.dtype
    if rule.below:
        below = Dim(_int(values.get(rule.below)))
        array.elements.dtype, array.elements.below = rule.dtype, below
        if array.counts is not None and below.size is not None:
            array.counts.limit(below.size)
            return
    size = values.get(rule.size)
    sizes = list(size) if isinstance(size, (list, tuple)) else [size]
    if rule.rank is not None:
        array.set_rank(rule.rank)
    if rule.below:
        array.suggest(TOKENS_HINTS)
    for position, each in enumerate(sizes):
        array.fix(rule.axis if len(sizes) == 1 else position - len(sizes), each)


def _result(rule: LayerRule, values: Mapping[str, object], array: Array) -> Array | None:
    out = Dim(_int(values.get(rule.out)))
    if rule.below:
        return Array([*array.all_dims(), out], None if array.known_rank is None else array.known_rank + 1)
    if rule.keeps:
        return array.with_last(out) if rule.out else array
    if rule.rank is None or rule.axis != 1:
        return None
    batch, channels = array.at(0), array.at(1)
    if batch is None or channels is None:
        return None
    return Array([batch, out if rule.out else channels, *(Dim() for _ in range(rule.rank - 2))], rule.rank)


def weight_of(layer: Layer) -> object:
    """Return the weight of an embedding or a linear layer; UNKNOWN for other layers."""
    names = {"Embedding": _EMBEDDING, "Linear": ("out_features", "in_features")}.get(layer.name)
    if names is None:
        return UNKNOWN
    array = array_of([_int(layer.values.get(name)) for name in names])
    array.is_state = True
    return array


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


Function = Callable[..., object]
FUNCTIONS: dict[str, Function] = {}
KEEPING = frozenset({
    "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "softmax",
    "log_softmax", "dropout", "clamp", "float", "half", "bfloat16", "double", "to", "type", "contiguous", "clone",
    "detach", "softplus", "leaky_relu", "elu", "mish", "hardswish", "hardsigmoid", "relu6", "square", "sin",
    "cos", "cuda", "cpu", "normalize", "cumsum", "cumprod", "flip", "roll", "masked_fill", "tril", "triu", "sign",
    "round", "floor", "ceil", "erf", "reciprocal", "pow", "relu_", "sigmoid_", "tanh_", "masked_fill_",
    "clamp_", "logsigmoid", "selu", "celu", "type_as", "nan_to_num", "requires_grad_",
})  # fmt: skip
ELEMENTWISE = frozenset({
    "add", "sub", "mul", "div", "maximum", "minimum", "lerp", "add_", "sub_", "mul_", "div_", "mse_loss",
    "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "addcmul", "addcdiv", "atan2", "fmod", "remainder",
})  # fmt: skip
CREATORS = frozenset({
    "ones", "zeros", "empty", "randn", "rand", "full", "linspace", "logspace", "eye", "arange", "tensor",
})  # fmt: skip


REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "logsumexp", "std", "var", "all", "any", "argmax", "argmin")
WITH_INDICES = ("max", "min", "median")
"""Reductions that return values and indices where they are given a dim."""
MAX_CHUNKS = 16
DEFAULT_CHUNK = 1024
"""Example size of a part of a dim."""


def function_of(name: str) -> Function | None:
    """Return what is known of a function or method of tensors; None if nothing is."""
    if name in ELEMENTWISE:
        return elementwise
    return _first if name in KEEPING else FUNCTIONS.get(name)


def created(name: str, arguments: Sequence[object]) -> Array | None:
    """Return the tensor of `torch.ones(...)` and others, whose dims are their arguments."""
    if name not in CREATORS or (name == "arange" and len(arguments) != 1):
        return None
    first = arguments[0] if arguments else None
    sizes = first if isinstance(first, (list, tuple)) else arguments
    if name == "tensor":
        sizes = list(_lengths(first))
    elif name in ("linspace", "logspace"):
        sizes = arguments[2:3]
    elif name == "eye":
        sizes = [*arguments, first][:2]
    return array_of([_int(size) for size in sizes])


def _lengths(values: object) -> Iterator[int]:
    """Yield the lengths of nested lists, from outside."""
    while isinstance(values, list):
        yield len(values)
        values = values[0] if values else None


KEYWORDS = {
    "linear": ("bias",),
    "layer_norm": ("weight", "bias"),
    "rms_norm": ("weight",),
    "where": ("other",),
    "chunk": ("dim",),
    "gather": ("dim", "index"),
    **dict.fromkeys(("unsqueeze", "squeeze", "unbind", "stack", "cat", "concat", "concatenate"), ("dim",)),
    **dict.fromkeys((*REDUCTIONS, *WITH_INDICES), ("dim", "axis", "keepdim")),
}
"""Keyword arguments of functions that say something of shapes, as positions after the positional arguments."""


def known_keywords(name: str, keywords: Mapping[str, object]) -> list[object]:
    """Return the keyword arguments that are tensors of known shape, in order."""
    return [keywords[each] for each in KEYWORDS.get(name, ()) if each in keywords]


def _function(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _first(*values: object) -> object:
    return values[0] if values else None


def elementwise(*values: object) -> Array | None:
    """Return the result of an elementwise operation, whose operands' dims are joined."""
    arrays = [value for value in values if isinstance(value, Array)]
    for array in arrays:
        array.elements.is_operand |= len(arrays) > 1 or any(value is UNKNOWN for value in values)
    return functools.reduce(match, arrays) if arrays else None


@_function("where")
def _where(*values: object) -> Array | None:
    """Join the operands' dims; the condition is computed with nothing."""
    arrays = [value for value in values if isinstance(value, Array)]
    return functools.reduce(match, arrays) if arrays else None


@_function("matmul", "mm", "bmm", "__matmul__")
def matmul(a: object = None, b: object = None, *_: object) -> Array | None:
    """Join the inner dims of a product; return it."""
    for each in (a, b):
        if isinstance(each, Array):
            each.elements.dtype = each.elements.dtype or "f32"
    if not isinstance(a, Array) or not isinstance(b, Array):
        return None
    inner, other, outer = a.at(-1), b.at(-2) if b.known_rank != 1 else b.at(-1), b.at(-1)
    if inner is not None and other is not None:
        join(inner, other)
    if b.known_rank == 1 or outer is None:
        return None
    for axis in range(-len(b.all_dims()), -2):
        left, right = a.at(axis), b.at(axis)
        if left is not None and right is not None:
            join(left, right)
    return a.with_last(outer)


@_function("linear")
def _linear(x: object = None, weight: object = None, bias: object = None, *_: object) -> Array | None:
    if not isinstance(x, Array) or not isinstance(weight, Array):
        return None
    weight.set_rank(2)
    out, inner, last = weight.at(0), weight.at(1), x.at(-1)
    if out is None or inner is None or last is None:
        return None
    join(last, inner)
    _vectors(out, bias)
    return x.with_last(out)


def _vectors(size: Dim | None, *vectors: object) -> None:
    for vector in vectors:
        if isinstance(vector, Array):
            vector.set_rank(1)
            last = vector.at(-1)
            if size is not None and last is not None:
                join(size, last)


@_function("layer_norm", "rms_norm")
def _layer_norm(x: object = None, shape: object = None, *vectors: object) -> Array | None:
    if not isinstance(x, Array):
        return None
    sizes = shape if isinstance(shape, (list, tuple)) else ()
    for position, size in enumerate(sizes):
        x.fix(position - len(sizes), size)
    _vectors(x.at(-1), *vectors)
    return x


@_function("batch_norm", "instance_norm")
def _batch_norm(x: object = None, *vectors: object) -> Array | None:
    if not isinstance(x, Array):
        return None
    x.set_rank(IMAGE_RANK)
    _vectors(x.at(1), *vectors)
    return x


@_function("group_norm")
def _group_norm(x: object = None, groups: object = None, *vectors: object) -> object:
    return _batch_norm(x, *vectors)


@_function("cross_entropy", "nll_loss")
def _cross_entropy(logits: object = None, target: object = None, *_: object) -> None:
    if isinstance(logits, Array) and isinstance(target, Array):
        logits.set_rank(2)
        target.set_rank(1)
        rows, row, target.elements.below = logits.at(0), target.at(0), logits.at(-1)
        target.elements.dtype = "i64"
        if rows is not None and row is not None and logits.known_rank == 2:
            join(rows, row)


@_function("embedding")
def _embedding(ids: object = None, weight: object = None, *_: object) -> Array | None:
    if not isinstance(ids, Array) or not isinstance(weight, Array):
        return None
    weight.set_rank(2)
    ids.set_rank(len(TOKENS_HINTS))
    ids.suggest(TOKENS_HINTS)
    ids.elements.dtype, ids.elements.below, last = "i64", weight.at(0), weight.at(-1)
    return None if last is None or ids.known_rank is None else Array([*ids.all_dims(), last], ids.known_rank + 1)


@_function("scaled_dot_product_attention")
def _attention(q: object = None, k: object = None, v: object = None, *_: object) -> object:
    arrays = [each for each in (q, k, v) if isinstance(each, Array)]
    for each in arrays:
        each.set_rank(IMAGE_RANK)
        each.suggest(ATTENTION_HINTS)
    if len(arrays) == 3:
        same_shape(arrays[1], arrays[2])
        for axis in (0, 1, 3):
            left, right = arrays[0].at(axis), arrays[1].at(axis)
            if left is not None and right is not None:
                join(left, right)
    return q


@_function("gather", "take_along_dim")
def _gather(x: object = None, axis: object = None, index: object = None, *_: object) -> object:
    """An index has the shape of the tensor that it is taken from, which is one that fits, or 1 along the axis."""
    dim = _int(axis)
    if not isinstance(x, Array) or not isinstance(index, Array) or dim is None:
        return None
    if x.known_rank is None and dim >= 0:
        x.set_rank(max(2, dim + 1, len(x.all_dims())))
    along = index.at(dim)
    if along is not None and along.size == 1:
        for array, other in ((x, index), (index, x)):
            if other.known_rank is not None:
                array.set_rank(other.known_rank)
        _join_others(x, index, along)
    else:
        same_shape(x, index)
    index.elements.dtype, index.elements.below = "i64", x.at(dim)
    return index


def _join_others(first: Array, second: Array, left_out: Dim) -> None:
    """Join the trailing dims of two tensors but one of the second's."""
    for axis in range(-len(second.all_dims()), 0):
        left, right = first.at(axis), second.at(axis)
        if left is not None and right is not None and right is not left_out:
            join(left, right)


@_function("chunk")
def _chunk(x: object = None, n_chunks: object = None, axis: object = 0, *_: object) -> object:
    """Return equal parts along the last dim. An open dim gets a size: no name says that another is a part of it."""
    n = _int(n_chunks)
    last = x.at(-1) if isinstance(x, Array) else None
    if last is None or not isinstance(x, Array) or n is None or not 0 < n <= MAX_CHUNKS:
        return None
    if axis != -1 and (x.known_rank is None or axis != x.known_rank - 1):
        return None
    last.give(n * (last.root.hint or DEFAULT_CHUNK))
    part = (last.size or 0) // n
    return [x.with_last(Dim(part)) for _ in range(n)]


def _convolution(n: int) -> Function:
    def convolve(x: object = None, weight: object = None, bias: object = None, *_: object) -> None:
        if not isinstance(x, Array) or not isinstance(weight, Array):
            return
        for array in (x, weight):
            array.set_rank(n + 2)
        channels, inner, out = x.at(1), weight.at(1), weight.at(0)
        if channels is not None and inner is not None:
            join(channels, inner)
        for axis in range(2, n + 2):
            weight.fix(axis, DEFAULT_EXTENT)
        _vectors(out, bias)

    return convolve


FUNCTIONS |= {f"conv{n}d": _convolution(n) for n in (1, 2, 3)}


@_function("einsum")
def _einsum(equation: object = None, *arrays: object) -> Array | None:
    if not isinstance(equation, str) or "." in equation:
        return None
    left, _, right = equation.replace(" ", "").partition("->")
    dims: dict[str, Dim] = {}
    for letters, array in zip(left.split(","), arrays, strict=False):
        if isinstance(array, Array):
            array.set_rank(len(letters))
            for letter, dim in zip(letters, array.all_dims(), strict=False):
                join(dims.setdefault(letter, dim), dim)
    return Array([dims.setdefault(letter, Dim()) for letter in right], len(right)) if right else None


@_function("transpose", "swapaxes")
def _transpose(x: object = None, first: object = None, second: object = None, *_: object) -> Array | None:
    a, b = _int(first), _int(second)
    if not isinstance(x, Array) or a is None or b is None:
        return None
    if x.known_rank is None and min(a, b) < 0 <= max(a, b):
        x.set_rank(max(SEQUENCE_RANK, len(x.all_dims())))
    rank = x.known_rank
    if rank is None and max(a, b) < 0 and x.at(min(a, b)) is not None:
        dims = list(x.all_dims())
        dims[a], dims[b] = dims[b], dims[a]
        return Array(dims)
    if rank is None or not all(-rank <= axis < rank for axis in (a, b)):
        return None
    dims = list(x.all_dims())
    dims[a], dims[b] = dims[b], dims[a]
    return Array(dims, rank)


@_function("permute")
def _permute(x: object = None, *axes: object) -> Array | None:
    if not isinstance(x, Array):
        return None
    order = [_int(axis) for axis in (axes[0] if axes and isinstance(axes[0], (list, tuple)) else axes)]
    x.set_rank(len(order))
    dims = x.all_dims()
    if x.known_rank != len(order) or any(axis is None or not -len(dims) <= axis < len(dims) for axis in order):
        return None
    return Array([dims[axis] for axis in order if axis is not None], len(order))


def _pooling(n: int) -> Function:
    def pool(x: object = None, *_: object) -> object:
        return apply_layer(Layer(f"MaxPool{n}d", {}), [x])

    return pool


for _n in (1, 2, 3):
    for _name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        FUNCTIONS[f"{_name}{_n}d"] = _pooling(_n)
