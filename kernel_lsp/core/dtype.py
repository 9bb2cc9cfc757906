"""Element types of tensors, as the launch plan spells them."""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    """An element type. The value is its spelling in a launch plan."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def torch_name(self) -> str:
        """The name of the dtype in `torch`, e.g. ``float32``."""
        return _TORCH_NAME[self]

    @property
    def cuda_type(self) -> str:
        """The C++ type a kernel parameter of this element type points to."""
        return _CUDA_TYPE[self]

    @property
    def is_floating(self) -> bool:
        return self in (DType.F64, DType.F32, DType.F16, DType.BF16)

    @classmethod
    def from_torch_name(cls, name: str) -> DType | None:
        """Return the dtype that `torch` calls `name` (with or without ``torch.``); None when unsupported."""
        return _BY_TORCH_NAME.get(name.removeprefix("torch."))


_ITEMSIZE = {
    DType.F64: 8,
    DType.F32: 4,
    DType.F16: 2,
    DType.BF16: 2,
    DType.I64: 8,
    DType.I32: 4,
    DType.I16: 2,
    DType.I8: 1,
    DType.U8: 1,
    DType.BOOL: 1,
}
_TORCH_NAME = {
    DType.F64: "float64",
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.I64: "int64",
    DType.I32: "int32",
    DType.I16: "int16",
    DType.I8: "int8",
    DType.U8: "uint8",
    DType.BOOL: "bool",
}
_BY_TORCH_NAME = {name: dtype for dtype, name in _TORCH_NAME.items()}
_CUDA_TYPE = {
    DType.F64: "double",
    DType.F32: "float",
    DType.F16: "__half",
    DType.BF16: "__nv_bfloat16",
    DType.I64: "long long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "signed char",
    DType.U8: "unsigned char",
    DType.BOOL: "bool",
}
