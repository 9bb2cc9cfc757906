"""Declarations of the LLVM intrinsics that a text calls."""

from __future__ import annotations

import re

_INTRINSICS = {
    "fabs": ("{t}", "({t})"),
    "copysign": ("{t}", "({t}, {t})"),
    "sqrt": ("{t}", "({t})"),
    "fma": ("{t}", "({t}, {t}, {t})"),
    "minimumnum": ("{t}", "({t}, {t})"),
    "maximumnum": ("{t}", "({t}, {t})"),
    "minimum": ("{t}", "({t}, {t})"),
    "maximum": ("{t}", "({t}, {t})"),
    "roundeven": ("{t}", "({t})"),
    "floor": ("{t}", "({t})"),
    "ceil": ("{t}", "({t})"),
    "trunc": ("{t}", "({t})"),
    "exp2": ("{t}", "({t})"),
    "log2": ("{t}", "({t})"),
    "sin": ("{t}", "({t})"),
    "cos": ("{t}", "({t})"),
    "smin": ("{t}", "({t}, {t})"),
    "smax": ("{t}", "({t}, {t})"),
    "umin": ("{t}", "({t}, {t})"),
    "umax": ("{t}", "({t}, {t})"),
    "abs": ("{t}", "({t}, i1)"),
    "ctpop": ("{t}", "({t})"),
    "ctlz": ("{t}", "({t}, i1)"),
    "cttz": ("{t}", "({t}, i1)"),
    "bitreverse": ("{t}", "({t})"),
    "fshl": ("{t}", "({t}, {t}, {t})"),
    "fshr": ("{t}", "({t}, {t}, {t})"),
    "sadd.sat": ("{t}", "({t}, {t})"),
    "ssub.sat": ("{t}", "({t}, {t})"),
    "uadd.with.overflow": ("{{{t}, i1}}", "({t}, {t})"),
    "usub.with.overflow": ("{{{t}, i1}}", "({t}, {t})"),
}
_LLVM_NAME = {"f32": "float", "f64": "double"}


def declarations(text: str) -> str:
    """Return the declaration of each intrinsic that `text` calls."""
    lines = []
    for name, kind in sorted(set(re.findall(r"@llvm\.([a-z0-9.]+?)\.([if]\d+)\(", text))):
        if name in _INTRINSICS:
            llvm_type = _LLVM_NAME.get(kind, kind)
            result, parameters = (part.format(t=llvm_type) for part in _INTRINSICS[name])
            lines.append(f"declare {result} @llvm.{name}.{kind}{parameters}")
    for integer, floating in sorted(set(re.findall(r"@llvm\.fpto[su]i\.sat\.(i\d+)\.(f\d+)\(", text))):
        for sign in "su":
            name = f"llvm.fpto{sign}i.sat.{integer}.{floating}"
            if f"@{name}(" in text:
                lines.append(f"declare {integer} @{name}({_LLVM_NAME[floating]})")
    for count in sorted(set(re.findall(r"@llvm\.fma\.v(\d+)f64\(", text))):
        vector = f"<{count} x double>"
        lines.append(f"declare {vector} @llvm.fma.v{count}f64({vector}, {vector}, {vector})")
    if "@tanhf(" in text:
        lines.append("declare float @tanhf(float)")
    return "\n".join(lines)
