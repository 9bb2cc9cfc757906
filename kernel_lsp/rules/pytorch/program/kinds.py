"""Classify the results of PyTorch calls and methods by name, as far as the rules depend on it."""

from __future__ import annotations

from enum import StrEnum

from kernel_lsp.rules.rule import words


class Kind(StrEnum):
    """The kind of a value, as far as the text determines it. Rules must not report OTHER."""

    TENSOR = "tensor"
    MASK = "mask"
    """A tensor that a comparison returned."""
    TENSORS = "tensors"
    """A list or tuple of tensors."""
    SIZE = "size"
    """A Python integer from a shape."""
    SIZES = "sizes"
    OTHER = "other"


TENSOR_KINDS = frozenset((Kind.TENSOR, Kind.MASK))

NOT_TENSOR_FUNCTIONS = words(
    """
    Generator Size Stream Event are_deterministic_algorithms_enabled autocast broadcast_shapes can_cast compile device
    dtype enable_grad finfo get_default_device get_default_dtype get_deterministic_debug_mode get_device_module
    get_float32_matmul_precision get_num_threads get_rng_state iinfo inference_mode initial_seed is_anomaly_enabled
    is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled is_complex is_conj
    is_deterministic_algorithms_warn_only_enabled is_distributed is_floating_point is_grad_enabled is_inference
    is_inference_mode_enabled is_neg is_nonzero is_same_size is_signed is_storage is_tensor is_warn_always_enabled
    layout load manual_seed no_grad numel promote_types result_type save script_if_tracing seed set_default_device
    set_default_dtype set_grad_enabled set_num_threads set_printoptions set_rng_state set_float32_matmul_precision
    typename use_deterministic_algorithms vmap equal allclose
    """
)
"""Functions of `torch` that return no tensor. Names in its submodules return none either, except those in
`TENSOR_NAMESPACES`."""
TENSOR_NAMESPACES = ("torch.nn.functional.", "torch.special.", "torch.fft.", "torch.linalg.")
TENSORS_FUNCTIONS = words(
    """
    chunk split unbind topk sort meshgrid tensor_split hsplit vsplit dsplit broadcast_tensors aminmax mode
    kthvalue cummax cummin std_mean var_mean unique_consecutive slogdet svd qr eigh eig frexp
    """
)
"""Functions and methods that return several tensors."""
EXTREMA = frozenset(("max", "min", "median", "nanmedian"))
"""Functions and methods that return values and indices with a dim, and one tensor without."""

NOT_TENSOR_METHODS = words(
    """
    item tolist numpy size dim ndimension numel nelement stride data_ptr element_size is_contiguous get_device
    is_floating_point is_complex is_pinned backward register_hook storage untyped_storage storage_offset
    has_names is_shared is_signed is_set_to names retain_grad dense_dim sparse_dim type __len__ equal allclose
    """
)
TENSOR_ATTRIBUTES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data", "grad"))
TENSOR_ONLY_METHODS = words(
    """
    unsqueeze permute contiguous expand expand_as detach softmax log_softmax masked_fill cuda cpu float half
    bfloat16 double view_as numel sigmoid tanh relu rsqrt matmul mm bmm clamp unbind chunk unfold index_select
    gather scatter scatter_add to size new_zeros new_ones new_full new_empty new_tensor requires_grad_ type_as
    addmm baddbmm einsum
    """
)
"""Methods that only tensors have. A parameter on which one is called is a tensor, because NumPy arrays have none of
them."""
TAKES_NUMBERS = words(
    """
    arange range zeros ones empty full eye linspace logspace rand randn randint randperm normal tensor as_tensor
    asarray from_numpy frombuffer scalar_tensor sparse_coo_tensor empty_strided tril_indices triu_indices
    bartlett_window blackman_window hamming_window hann_window kaiser_window einsum vander broadcast_shapes
    """
)
"""Functions of `torch` whose first argument is a size, a number, a text or an array. They are no evidence of a
tensor."""
TAKES_TENSORS = words(
    """
    cat concat concatenate stack hstack vstack dstack row_stack column_stack block_diag cartesian_prod meshgrid
    broadcast_tensors
    """
)
"""Functions of `torch` whose first argument is a list of tensors."""
ARRAY_LIKE_NAMES = words(
    """
    shape ndim device dtype view reshape transpose flatten mean sum pow exp log sqrt abs max min T
    norm argmax argmin amax amin var std prod cumsum cumprod topk sort split square
    """
)
"""Methods that are sufficient evidence of a tensor inside a `forward`, where an array would be unusual."""
MULTIPLE_OUTPUT_MODULES = frozenset(
    ["LSTM", "GRU", "RNN", "LSTMCell", "MultiheadAttention", "AdaptiveLogSoftmaxWithLoss"]
)

POINTWISE_FUNCTIONS = words(
    """
    abs add addcdiv addcmul atan2 bitwise_and bitwise_not bitwise_or ceil celu clamp clamp_max clamp_min clip
    cos cosh div divide elu eq erf erfc exp exp2 expm1 floor fmod ge gelu gt hardsigmoid hardswish hardtanh le
    leaky_relu lerp log log10 log1p log2 logaddexp logical_and logical_not logical_or logsigmoid lt
    masked_fill maximum minimum mish mul multiply ne neg negative pow reciprocal relu relu6 remainder round
    rsqrt rsub selu sigmoid sign silu sin sinh softplus softsign sqrt square sub subtract tan tanh tanhshrink
    threshold true_divide trunc where
    """
)
"""Functions of `torch` and `torch.nn.functional`, and methods. Each launches one kernel in eager mode."""
POINTWISE_MODULES = words(
    """
    ReLU ReLU6 LeakyReLU ELU CELU SELU GELU SiLU Mish Sigmoid Tanh Hardswish Hardsigmoid Hardtanh Softplus
    Softsign LogSigmoid Tanhshrink Threshold
    """
)
CAST_DTYPES = {
    "float": ("float32", "float"),
    "half": ("float16", "half"),
    "bfloat16": ("bfloat16",),
    "double": ("float64", "double"),
    "int": ("int32", "int"),
    "long": ("int64", "long"),
}
"""Equivalent `torch` dtypes of each cast method."""
REDUCTIONS = words(
    """
    sum mean norm amax amin max min prod argmin argmax logsumexp
    """
)
