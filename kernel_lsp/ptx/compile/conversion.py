"""Translate `cvt` between all integer and floating types."""

from __future__ import annotations

from kernel_lsp.ptx.compile.emitter import Emitter, Handler
from kernel_lsp.ptx.compile.floating import SCALAR, compute_type, directed, join, read_floats, relu
from kernel_lsp.ptx.compile.register_ir import llvm_type
from kernel_lsp.ptx.text.syntax import WIDTH_BITS, Instruction, UnsupportedPtxError

_TO_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_DIRECTED = ("rz", "rm", "rp")


def convert(e: Emitter, i: Instruction) -> None:
    """Dispatch on the two types of the instruction."""
    kinds = i.types()
    if len(kinds) != 2 or any(modifier.startswith(("e4m3", "e5m2", "e2m", "e3m", "ue8")) for modifier in i.modifiers):
        raise UnsupportedPtxError("a conversion of these types", i)
    wanted, given = kinds
    if wanted in ("f16x2", "bf16x2"):
        convert_pair(e, i, wanted)
    elif wanted in SCALAR:
        (float_to_float if given in SCALAR else integer_to_float)(e, i, wanted, given)
    elif wanted == "tf32":
        value = e.call("i32", "k.float_to_tf32", f"float {e.read(i.operands[1], 'float')}")
        e.write(i.operands[0], value, "i32")
    elif given in SCALAR:
        float_to_integer(e, i, wanted, given)
    else:
        integer_to_integer(e, i, wanted, given)


def convert_pair(e: Emitter, i: Instruction, wanted: str) -> None:
    """Translate ``cvt.rn.f16x2.f32 d, a, b``: a is the high half."""
    if i.types()[-1] != "f32" or len(i.operands) != 3:
        raise UnsupportedPtxError("a packed conversion of these types", i)
    high, low = (_narrow(e, i, e.read(operand, "float"), SCALAR[wanted]) for operand in i.operands[1:3])
    e.write(i.operands[0], join(e, low, high), "i32")


def float_to_float(e: Emitter, i: Instruction, wanted: str, given: str) -> None:
    (value,) = read_floats(e, i.operands[1], given, ftz=i.has("ftz"))
    value = _to_integral(e, i, value, compute_type(given))
    if wanted == "f64":
        e.write(i.operands[0], _saturate(e, i, _widen(e, value, given), "double"), "double")
    elif wanted == "f32":
        value = _saturate(e, i, _to_f32(e, i, value, given), "float")
        e.write(i.operands[0], e.call("float", "k.ftz", f"float {value}") if i.has("ftz") else value, "float")
    else:
        if given == "f64":
            value = e.call("float", "k.double_to_odd", f"double {value}")
        e.write(i.operands[0], _narrow(e, i, _saturate(e, i, value, "float"), wanted), "i16")


def integer_to_float(e: Emitter, i: Instruction, wanted: str, given: str) -> None:
    """Convert with rounding to nearest even. Other modes apply if a double represents the integer exactly."""
    opcode = "sitofp" if given[0] == "s" else "uitofp"
    value, width = e.read(i.operands[1], llvm_type(given)), llvm_type(given)
    is_inexact = WIDTH_BITS[given] == 64 and (wanted in ("f16", "bf16") or i.has(*_DIRECTED))
    if is_inexact:
        _long_to_float(e, i, wanted, value, is_signed=given[0] == "s")
    elif wanted == "f64":
        e.write(i.operands[0], e.op(f"{opcode} {width} {value} to double"), "double")
    elif wanted == "f32" and not i.has(*_DIRECTED):
        e.write(i.operands[0], _saturate(e, i, e.op(f"{opcode} {width} {value} to float"), "float"), "float")
    else:
        exact = e.op(f"{opcode} {width} {value} to double")
        if wanted == "f32":
            e.write(i.operands[0], _to_f32(e, i, exact, "f64"), "float")
        else:
            odd = e.call("float", "k.double_to_odd", f"double {exact}")
            e.write(i.operands[0], _narrow(e, i, odd, wanted), "i16")


def float_to_integer(e: Emitter, i: Instruction, wanted: str, given: str) -> None:
    """Convert with clamping to the integer's range; NaN gives 0."""
    number, suffix = compute_type(given), "f64" if given == "f64" else "f32"
    (value,) = read_floats(e, i.operands[1], given, ftz=i.has("ftz"))
    value = _to_integral(e, i, value, number)
    sign, width = ("s" if wanted[0] == "s" else "u"), llvm_type(wanted)
    result = e.call(width, f"llvm.fpto{sign}i.sat.{width}.{suffix}", f"{number} {value}")
    e.write(i.operands[0], result, width, is_signed=sign == "s")


def integer_to_integer(e: Emitter, i: Instruction, wanted: str, given: str) -> None:
    source, target = llvm_type(given), llvm_type(wanted)
    value = e.read(i.operands[1], source)
    is_signed = given[0] == "s"
    if i.has("sat"):
        value, source = _clamp(e, value, given, wanted), "i128"
    e.write(i.operands[0], e.coerce(value, source, target, is_signed=is_signed), target, is_signed=wanted[0] == "s")


HANDLERS: dict[str, Handler] = {"cvt": convert}


def _to_integral(e: Emitter, i: Instruction, value: str, number: str) -> str:
    for modifier, name in _TO_INTEGRAL.items():
        if i.has(modifier):
            return e.call(number, f"llvm.{name}.{'f64' if number == 'double' else 'f32'}", f"{number} {value}")
    return value


def _widen(e: Emitter, value: str, given: str) -> str:
    return value if given == "f64" else e.op(f"fpext float {value} to double")


def _to_f32(e: Emitter, i: Instruction, value: str, given: str) -> str:
    if given != "f64":
        return value
    mode = next((modifier for modifier in i.modifiers if modifier in _DIRECTED), None)
    if mode is None:
        return e.op(f"fptrunc double {value} to float")
    both = e.call("{float, double}", "k.truncate_with_error", f"double {value}")
    return e.call("float", f"k.round_{mode}", f"{{float, double}} {both}")


def _narrow(e: Emitter, i: Instruction, value: str, wanted: str) -> str:
    """Return the f16 or bf16 bits of a float."""
    if i.has("relu"):
        value = relu(e, value)
    if i.has("satfinite", "rm", "rp", "rs"):
        raise UnsupportedPtxError("a conversion with this rounding", i)
    name = "half" if wanted == "f16" else "bfloat"
    return e.call("i16", f"k.float_to_{name}{'_rz' if i.has('rz') else ''}", f"float {value}")


def _long_to_float(e: Emitter, i: Instruction, wanted: str, value: str, *, is_signed: bool) -> None:
    """Convert a 64-bit integer as the sum of two doubles, one per half. The sum is rounded once."""
    low = e.op(f"uitofp i64 {e.op(f'and i64 {value}, 4294967295')} to double")
    high = e.op(f"{'ashr' if is_signed else 'lshr'} i64 {value}, 32")
    scaled = e.op(f"fmul double {e.op(f'sitofp i64 {high} to double')}, 0x41F0000000000000")
    if wanted == "f64":
        e.write(i.operands[0], directed(e, i, "fma", (scaled, "1.0", low), "f64"), "double")
        return
    both = e.call("{float, double}", "k.sum_with_error", f"double {scaled}", f"double {low}")
    if wanted == "f32":
        mode = next(modifier for modifier in i.modifiers if modifier in _DIRECTED)
        e.write(i.operands[0], e.call("float", f"k.round_{mode}", f"{{float, double}} {both}"), "float")
    else:
        odd = e.call("float", "k.round_odd", f"{{float, double}} {both}")
        e.write(i.operands[0], _narrow(e, i, odd, wanted), "i16")


def _saturate(e: Emitter, i: Instruction, value: str, number: str) -> str:
    if not i.has("sat"):
        return value
    return e.call(number, f"k.sat.{'f64' if number == 'double' else 'f32'}", f"{number} {value}")


def _clamp(e: Emitter, value: str, given: str, wanted: str) -> str:
    """Clamp the 128-bit integer to the range of `wanted`."""
    wide = e.op(f"{'sext' if given[0] == 's' else 'zext'} {llvm_type(given)} {value} to i128")
    n_bits = WIDTH_BITS[wanted]
    low, high = (-(1 << (n_bits - 1)), (1 << (n_bits - 1)) - 1) if wanted[0] == "s" else (0, (1 << n_bits) - 1)
    raised = e.call("i128", "llvm.smax.i128", f"i128 {wide}", f"i128 {low}")
    return e.call("i128", "llvm.smin.i128", f"i128 {raised}", f"i128 {high}")
