"""Resolve a launch to its kernel, and to its C++ name with template arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression, ExpressionError, Name, Number, evaluate
from kernel_lsp.core.plan import KernelSignature, Launch
from kernel_lsp.plan.cuda_types import pointer_fits, resolve_template

_DOUBLE_FUNCTIONS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf "
    "erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs fdim fdivide floor fma fmax fmin fmod frexp hypot ilogb "
    "j0 j1 jn ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter "
    "norm norm3d norm4d normcdf normcdfinv pow rcbrt remainder remquo rhypot rint rnorm rnorm3d rnorm4d round "
    "rsqrt scalbln scalbn sin sincos sincospi sinh sinpi sqrt tan tanh tgamma trunc y0 y1 yn"
)
_FOR_DOUBLES = tuple(_DOUBLE_FUNCTIONS.split())
CUDA_FUNCTIONS = frozenset(
    (
        *_FOR_DOUBLES,
        *(f"{name}f" for name in _FOR_DOUBLES),
        *("abs", "all", "any", "clock", "free", "isfinite", "isinf", "isnan", "labs", "llabs", "llmax", "llmin"),
        *("malloc", "max", "memcpy", "memset", "min", "printf", "signbit", "ullmax", "ullmin", "umax", "umin"),
    )
)
"""Kernel names that collide with functions in CUDA's own headers (crt/math_functions.h of CUDA 12.8)."""


def kernel_name(launch: Launch, values: Mapping[str, Number]) -> str:
    """Return the kernel with its template arguments, e.g. ``rows<256, true, float>``, for these dims and scalars.
    Raises ExpressionError."""
    arguments = ", ".join(template_texts(launch, values))
    return f"{launch.kernel}<{arguments}>" if launch.template_arguments else launch.kernel


def name_expression(
    launch: Launch,
    values: Mapping[str, Number],
    signature: KernelSignature,
    signatures: Sequence[KernelSignature],
) -> str:
    """Return the name expression for the compiler: the kernel's name, ``rows<>`` if all template arguments are
    defaults, or a cast to its type if the name is ambiguous. Raises ExpressionError."""
    if signature.template_parameters and not launch.template_arguments:
        return f"{launch.kernel}<>"
    return typed_name(launch, signature, signatures) or kernel_name(launch, values)


def typed_name(launch: Launch, signature: KernelSignature, signatures: Sequence[KernelSignature]) -> str:
    """Return ``static_cast<void (*)(const float*, int)>(norm)`` for an ambiguous kernel name, else an empty text."""
    same = [other for other in signatures if other.name == signature.name]
    if signature.template_parameters or (len(same) == 1 and signature.name not in CUDA_FUNCTIONS):
        return ""
    types = ", ".join(f"{'const ' * p.is_const}{p.element}{'*' * p.is_pointer}" for p in signature.parameters)
    return f"static_cast<void (*)({types})>({launch.kernel})"


def template_texts(launch: Launch, values: Mapping[str, Number]) -> tuple[str, ...]:
    """Return the template arguments as C++ text. Raises ExpressionError for one that cannot be evaluated or is a
    float."""
    return tuple(_template_text(argument, values) for argument in launch.template_arguments)


def find_signature(
    launch: Launch, signatures: Sequence[KernelSignature], dtypes: Mapping[str, DType]
) -> KernelSignature | None:
    """Return the kernel that a launch names. Among overloads, prefer the first that takes tensors of these `dtypes`, by
    name, then the same number of arguments."""
    name = launch.kernel.removeprefix("::")
    named = [signature for signature in signatures if signature.name == name]
    counted = [signature for signature in named if len(signature.parameters) == len(launch.arguments)]
    taking = (signature for signature in counted if len(counted) == 1 or _takes(signature, launch, dtypes))
    return next(taking, next(iter(counted or named), None))


def _takes(signature: KernelSignature, launch: Launch, dtypes: Mapping[str, DType]) -> bool:
    templates = tuple(str(argument) for argument in launch.template_arguments)
    for argument, parameter in zip(launch.arguments, signature.parameters, strict=True):
        dtype = dtypes.get(argument.id) if isinstance(argument, Name) else None
        if (dtype is not None) != parameter.is_pointer:
            return False
        element = resolve_template(parameter.element, signature, templates)
        if dtype is not None and element is not None and pointer_fits(element, dtype) is False:
            return False
    return True


def _template_text(argument: Expression | str, values: Mapping[str, Number]) -> str:
    if isinstance(argument, str):
        return argument
    value = evaluate(argument, values)
    if isinstance(value, float):
        raise ExpressionError(f"'{argument}' is {value}, and a template argument must be an integer")
    return str(value).lower() if isinstance(value, bool) else str(value)
