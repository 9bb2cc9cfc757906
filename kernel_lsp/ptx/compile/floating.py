"""Translate floating-point arithmetic, comparison and selection in f16, bf16, f32 and f64.

16-bit arithmetic is computed in f32 and rounded once more, which is exact for one operation (24 >= 2 * 11 + 2 bits). A
fused multiply-add is first rounded to odd. Approximate functions use the C library, which is more accurate than the
hardware.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from kernel_lsp.ptx.compile.emitter import Emitter, Handler
from kernel_lsp.ptx.compile.integer import INTEGER_FORMS, is_integer, packed
from kernel_lsp.ptx.compile.register_ir import llvm_type
from kernel_lsp.ptx.text.syntax import WIDTH_BITS, Instruction, Operand, Pair, Register, UnsupportedPtxError

SCALAR = {"f16": "f16", "f16x2": "f16", "bf16": "bf16", "bf16x2": "bf16", "f32": "f32", "f64": "f64"}
"""Element type of each floating type."""
_FROM_BITS = {"f16": "k.half_to_float", "bf16": "k.bfloat_to_float"}
_TO_BITS = {"f16": "k.float_to_half", "bf16": "k.float_to_bfloat"}
_DIRECTED = ("rz", "rm", "rp")
_COARSE_BITS = 13
"""Inaccurate low bits, of an f32's 23, of `tanh.approx`: its relative error is up to 2^-11 (PTX ISA 9.0, `tanh`)."""
_TURNS_PER_RADIAN, _RADIANS_PER_TURN = 1 / math.tau, math.tau
_FIXED_POINT, _SMALL_SINE = 2.0**21, 2.0**-8
"""Scale of the fixed-point rounding of `sin.approx` and `cos.approx`. Their error is up to 2^-20.5 (PTX ISA 9.0,
`sin`); rounding to 2^-21 stays within it."""
_LIBRARY = {
    "ex2": "llvm.exp2.f32",
    "lg2": "llvm.log2.f32",
    "sin": "llvm.sin.f32",
    "cos": "llvm.cos.f32",
    "tanh": "tanhf",
}
ORDERED = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord", "nan": "uno"}
UNORDERED = {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge"}
_INTEGER_COMPARE = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


def compute_type(kind: str) -> str:
    """Return the LLVM type in which arithmetic on a PTX type is done."""
    return "double" if kind == "f64" else "float"


def read_floats(e: Emitter, operand: Operand, kind: str, *, ftz: bool = False) -> list[str]:
    """Return the elements of an operand of type `kind`, in its compute type."""
    element = SCALAR[kind]
    if element in ("f32", "f64"):
        value = e.read(operand, llvm_type(element))
        return [e.call("float", "k.ftz", f"float {value}") if ftz and element == "f32" else value]
    bits = e.read(operand, llvm_type(kind))
    halves = [bits] if WIDTH_BITS[kind] == 16 else _split(e, bits)
    return [e.call("float", _FROM_BITS[element], f"i16 {half}") for half in halves]


def write_floats(e: Emitter, operand: Operand, values: list[str], i: Instruction, kind: str) -> None:
    """Round the elements to `kind`, apply `.sat`, `.relu` and `.ftz` of `i`, and store them. Where the bits of a NaN
    are observable, it gets the pattern of a GPU's arithmetic."""
    element, number = SCALAR[kind], compute_type(kind)
    if i.has("sat"):
        suffix = "f64" if number == "double" else "f32"
        values = [e.call(number, f"k.sat.{suffix}", f"{number} {value}") for value in values]
    if i.has("relu"):
        values = [relu(e, value) for value in values]
    if element in ("f32", "f64"):
        if i.has("ftz") and element == "f32":
            values = [e.call("float", "k.ftz", f"float {value}") for value in values]
        if element == "f32" and isinstance(operand, Register) and operand.name in e.read_as_bits:
            values = [e.call("float", "k.canonical", f"float {value}") for value in values]
        e.write(operand, values[0], number)
        return
    bits = [e.call("i16", _TO_BITS[element], f"float {value}") for value in values]
    e.write(operand, bits[0] if len(bits) == 1 else join(e, *bits), llvm_type(kind))


def join(e: Emitter, low: str, high: str) -> str:
    """Pack two 16-bit values into one of 32 bits."""
    shifted = e.op(f"shl i32 {e.coerce(high, 'i16', 'i32')}, 16")
    return e.op(f"or i32 {shifted}, {e.coerce(low, 'i16', 'i32')}")


def relu(e: Emitter, value: str) -> str:
    """Return max(value, 0), preserving NaN."""
    return e.call("float", "llvm.maximum.f32", f"float {value}", "float 0.0")


def binary(e: Emitter, i: Instruction) -> None:
    """Translate `add`, `sub` and `mul`."""
    kind = i.types()[-1]
    left, right = (read_floats(e, operand, kind, ftz=i.has("ftz")) for operand in i.operands[1:3])
    if i.has(*_DIRECTED):
        values = [_directed_binary(e, i, a, b, kind) for a, b in zip(left, right, strict=True)]
    else:
        number = compute_type(kind)
        values = [e.op(f"f{i.opcode} {number} {a}, {b}") for a, b in zip(left, right, strict=True)]
    write_floats(e, i.operands[0], values, i, kind)


def fused_multiply_add(e: Emitter, i: Instruction) -> None:
    """Translate `fma`, and the equivalent `mad` of floats."""
    kind = i.types()[-1]
    columns = [read_floats(e, operand, kind, ftz=i.has("ftz")) for operand in i.operands[1:4]]
    values = [_fma(e, i, kind, operands) for operands in zip(*columns, strict=True)]
    write_floats(e, i.operands[0], values, i, kind)


def divide(e: Emitter, i: Instruction) -> None:
    """Translate `div`; `.approx` and `.full` are correctly rounded."""
    kind = i.types()[-1]
    (a,), (b,) = (read_floats(e, operand, kind, ftz=i.has("ftz")) for operand in i.operands[1:3])
    value = directed(e, i, "div", (a, b), kind) if i.has(*_DIRECTED) else e.op(f"fdiv {compute_type(kind)} {a}, {b}")
    write_floats(e, i.operands[0], [value], i, kind)


def reciprocal(e: Emitter, i: Instruction) -> None:
    kind = i.types()[-1]
    (a,) = read_floats(e, i.operands[1], kind, ftz=i.has("ftz"))
    if i.has(*_DIRECTED):
        value = directed(e, i, "div", ("1.0", a), kind)
    else:
        value = e.op(f"fdiv {compute_type(kind)} 1.0, {a}")
    write_floats(e, i.operands[0], [value], i, kind)


def square_root(e: Emitter, i: Instruction) -> None:
    """Translate `sqrt` and `rsqrt`. The reciprocal is rounded once, from double."""
    kind = i.types()[-1]
    number, suffix = compute_type(kind), "f64" if kind == "f64" else "f32"
    (a,) = read_floats(e, i.operands[1], kind, ftz=i.has("ftz"))
    if i.opcode == "rsqrt":
        value = _reciprocal_root(e, a, number)
    elif i.has(*_DIRECTED):
        value = directed(e, i, "sqrt", (a,), kind)
    else:
        value = e.call(number, f"llvm.sqrt.{suffix}", f"{number} {a}")
    write_floats(e, i.operands[0], [value], i, kind)


def library_function(e: Emitter, i: Instruction) -> None:
    """Translate `ex2`, `lg2`, `sin`, `cos` and `tanh`. The last three are as inaccurate as on a GPU, so that code which
    depends on their accuracy fails the checks."""
    kind = i.types()[-1]
    values = read_floats(e, i.operands[1], kind, ftz=i.has("ftz"))
    if i.opcode in ("sin", "cos"):
        values = [_reduced_angle(e, value) for value in values]
    results = [e.call("float", _LIBRARY[i.opcode], f"float {value}") for value in values]
    if i.opcode == "tanh":
        results = [_with_eleven_bits(e, result) for result in results]
    if i.opcode in ("sin", "cos"):
        results = [_in_fixed_point(e, result) for result in results]
    write_floats(e, i.operands[0], results, i, kind)


def _reduced_angle(e: Emitter, radians: str) -> str:
    """Reduce an angle to half a turn around zero, in f32 turns as on a GPU. Large angles lose most of their bits."""
    turns = e.op(f"fmul float {radians}, {_float_constant(_TURNS_PER_RADIAN)}")
    part = e.op(f"fsub float {turns}, {e.call('float', 'llvm.roundeven.f32', f'float {turns}')}")
    return e.op(f"fmul float {part}, {_float_constant(_RADIANS_PER_TURN)}")


def _in_fixed_point(e: Emitter, value: str) -> str:
    """Round to the fixed-point precision of a GPU.
    Small values, for which none is specified, and NaN stay unchanged."""
    scaled = e.op(f"fmul float {value}, {_float_constant(_FIXED_POINT)}")
    whole = e.call("float", "llvm.roundeven.f32", f"float {scaled}")
    fixed = e.op(f"fmul float {whole}, {_float_constant(1 / _FIXED_POINT)}")
    size = e.call("float", "llvm.fabs.f32", f"float {value}")
    return e.op(
        f"select i1 {e.op(f'fcmp ogt float {size}, {_float_constant(_SMALL_SINE)}')}, float {fixed}, float {value}"
    )


def _float_constant(value: float) -> str:
    """Return the LLVM constant: the bits of the f64 that equals the f32."""
    (nearest,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', nearest))[0]:016X}"


def _with_eleven_bits(e: Emitter, value: str) -> str:
    """Round a float to eleven bits; NaN is preserved."""
    bits = e.op(f"bitcast float {value} to i32")
    raised = e.op(f"add i32 {bits}, {1 << (_COARSE_BITS - 1)}")
    coarse = e.op(f"bitcast i32 {e.op(f'and i32 {raised}, {-(1 << _COARSE_BITS)}')} to float")
    return e.op(f"select i1 {e.op(f'fcmp uno float {value}, {value}')}, float {value}, float {coarse}")


INFINITY_BITS = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}


def sign_change(e: Emitter, i: Instruction) -> None:
    """Translate `neg` and `abs` on the bits. `abs` keeps the payload of a NaN."""
    kind = i.types()[-1]
    if i.has("ftz") and kind == "f32":
        (value,) = read_floats(e, i.operands[1], kind, ftz=True)
        value = e.coerce(value, "float", "i32")
    else:
        value = e.read(i.operands[1], f"i{WIDTH_BITS[kind]}")
    width = WIDTH_BITS[kind]
    if i.opcode == "neg":
        result = negated(e, value, kind)
    else:
        signs = 0x80008000 if kind.endswith("x2") else 1 << (width - 1)
        result = e.op(f"and i{width} {value}, {signs ^ ((1 << width) - 1)}")
    e.write(i.operands[0], result, f"i{width}")


def negated(e: Emitter, value: str, kind: str) -> str:
    """Return one or two numbers with the other sign. A NaN becomes that of a GPU's arithmetic, as the hardware negates
    by an addition: its sign flipped, it would be all ones, and pass for unwritten memory."""
    if kind.endswith("x2"):
        halves = [e.coerce(value, "i32", "i16"), e.op(f"trunc i32 {e.op(f'lshr i32 {value}, 16')} to i16")]
        return join(e, *(negated(e, half, kind.removesuffix("x2")) for half in halves))
    width, infinity = f"i{WIDTH_BITS[kind]}", INFINITY_BITS.get(kind)
    sign = 1 << (WIDTH_BITS[kind] - 1)
    changed = e.op(f"xor {width} {value}, {sign}")
    if infinity is None:
        return changed
    is_nan = e.op(f"icmp ugt {width} {e.op(f'and {width} {value}, {sign - 1}')}, {infinity}")
    return e.op(f"select i1 {is_nan}, {width} {sign - 1}, {width} {changed}")


def minimum_or_maximum(e: Emitter, i: Instruction) -> None:
    """Translate `min` and `max` with two or three inputs. Without `.NaN`, a number takes precedence over NaN."""
    kind = i.types()[-1]
    columns = [read_floats(e, operand, kind, ftz=i.has("ftz")) for operand in i.operands[1:]]
    if i.has("xorsign"):
        raise UnsupportedPtxError("min and max with .xorsign", i)
    name = f"llvm.{i.opcode}imum{'' if i.has('NaN') else 'num'}.{'f64' if kind == 'f64' else 'f32'}"
    number = compute_type(kind)
    values = []
    for operands in zip(*columns, strict=True):
        value = operands[0]
        if i.has("abs"):
            operands = tuple(e.call(number, "llvm.fabs.f32", f"{number} {operand}") for operand in operands)
            value = operands[0]
        for other in operands[1:]:
            value = e.call(number, name, f"{number} {value}", f"{number} {other}")
        values.append(value)
    write_floats(e, i.operands[0], values, i, kind)


def copy_sign(e: Emitter, i: Instruction) -> None:
    """Translate `copysign d, a, b`: the magnitude of b with the sign of a."""
    kind = i.types()[-1]
    number = llvm_type(kind)
    sign, magnitude = e.read(i.operands[1], number), e.read(i.operands[2], number)
    arguments = f"{number} {magnitude}", f"{number} {sign}"
    e.write(i.operands[0], e.call(number, f"llvm.copysign.{kind}", *arguments), number)


def test_property(e: Emitter, i: Instruction) -> None:
    """Translate `testp` with the LLVM class mask of each property."""
    kind = i.types()[-1]
    number = llvm_type(kind)
    masks = {"finite": 504, "infinite": 516, "number": 1020, "notanumber": 3, "normal": 264, "subnormal": 144}
    value = e.read(i.operands[1], number)
    mask = masks[i.modifiers[0]]
    e.write(i.operands[0], e.op(f"call i1 @llvm.is.fpclass.{kind}({number} {value}, i32 {mask})"), "i1")


def set_predicate(e: Emitter, i: Instruction) -> None:
    """Translate `setp`: one or two predicates, optionally combined with a third."""
    kind = i.types()[-1]
    target = i.operands[0]
    results = compare(e, i, kind)
    if kind.endswith("x2"):
        pair = target if isinstance(target, Pair) else Pair(target, target)
        for operand, result in zip((pair.first, pair.second), results, strict=True):
            e.write(operand, combine(e, i, result), "i1")
        return
    if isinstance(target, Pair):
        e.write(target.second, combine(e, i, e.op(f"xor i1 true, {results[0]}")), "i1")
        target = target.first
    e.write(target, combine(e, i, results[0]), "i1")


def set_value(e: Emitter, i: Instruction) -> None:
    """Translate `set`: all ones or 1.0 where the comparison holds."""
    wanted, kind = i.types()[0], i.types()[-1]
    results = [combine(e, i, result) for result in compare(e, i, kind)]
    if wanted in ("u32", "s32"):
        widths = [e.op(f"sext i1 {result} to {'i16' if len(results) == 2 else 'i32'}") for result in results]
        e.write(i.operands[0], join(e, *widths) if len(widths) == 2 else widths[0], "i32")
    else:
        values = [e.op(f"select i1 {result}, float 1.0, float 0.0") for result in results]
        bits = values if wanted == "f32" else [e.call("i16", _TO_BITS[SCALAR[wanted]], f"float {v}") for v in values]
        e.write(i.operands[0], join(e, *bits) if len(bits) == 2 else bits[0], llvm_type(wanted))


def compare(e: Emitter, i: Instruction, kind: str) -> list[str]:
    """Return one i1 per element: ``a op b``."""
    name = i.modifiers[0]
    a, b = i.operands[1], i.operands[2]
    if kind in SCALAR:
        code = {**ORDERED, **UNORDERED}[name]
        number = compute_type(kind)
        left, right = (read_floats(e, operand, kind, ftz=i.has("ftz")) for operand in (a, b))
        return [e.op(f"fcmp {code} {number} {x}, {y}") for x, y in zip(left, right, strict=True)]
    width = llvm_type(kind)
    code = _INTEGER_COMPARE.get(name) or f"{'s' if kind[0] == 's' else 'u'}{name}"
    return [e.op(f"icmp {code} {width} {e.read(a, width)}, {e.read(b, width)}")]


def combine(e: Emitter, i: Instruction, result: str) -> str:
    """Return ``result boolop c`` for the forms that have a fourth operand."""
    if len(i.operands) < 4:
        return result
    third = i.operands[3]
    other = e.read(third, "i1")
    name = next(modifier for modifier in i.modifiers if modifier in ("and", "or", "xor"))
    return e.op(f"{name} i1 {result}, {other}")


def select(e: Emitter, i: Instruction) -> None:
    """Translate `selp d, a, b, p`."""
    target, a, b, condition = i.operands
    width = llvm_type(i.types()[-1])
    chosen = e.op(f"select i1 {e.read(condition, 'i1')}, {width} {e.read(a, width)}, {width} {e.read(b, width)}")
    e.write(target, chosen, width)


def select_by_sign(e: Emitter, i: Instruction) -> None:
    """Translate `slct d, a, b, c`: a where c >= 0."""
    target, a, b, c = i.operands
    width, kind = llvm_type(i.types()[0]), i.types()[1]
    if kind == "f32":
        condition = e.op(f"fcmp oge float {e.read(c, 'float')}, 0.0")
    else:
        condition = e.op(f"icmp sge i32 {e.read(c, 'i32')}, 0")
    chosen = e.op(f"select i1 {condition}, {width} {e.read(a, width)}, {width} {e.read(b, width)}")
    e.write(target, chosen, width)


def either(integer: Handler, floating: Handler) -> Handler:
    """Return a handler that dispatches on the type."""

    def handle(e: Emitter, i: Instruction) -> None:
        if i.has("u16x2", "s16x2"):
            packed(e, i)
        else:
            (integer if is_integer(i) else floating)(e, i)

    return handle


FLOATING_FORMS: dict[str, Handler] = {
    "add": binary,
    "sub": binary,
    "mul": binary,
    "div": divide,
    "abs": sign_change,
    "neg": sign_change,
    "min": minimum_or_maximum,
    "max": minimum_or_maximum,
}
HANDLERS: dict[str, Handler] = {
    **{name: either(INTEGER_FORMS[name], FLOATING_FORMS[name]) for name in FLOATING_FORMS},
    "fma": fused_multiply_add,
    "rcp": reciprocal,
    "sqrt": square_root,
    "rsqrt": square_root,
    **dict.fromkeys(_LIBRARY, library_function),
    "copysign": copy_sign,
    "testp": test_property,
    "setp": set_predicate,
    "set": set_value,
    "selp": select,
    "slct": select_by_sign,
}


def _split(e: Emitter, bits: str) -> list[str]:
    return [e.op(f"trunc i32 {bits} to i16"), e.op(f"trunc i32 {e.op(f'lshr i32 {bits}, 16')} to i16")]


def _fma(e: Emitter, i: Instruction, kind: str, operands: tuple[str, ...]) -> str:
    number = compute_type(kind)
    arguments = [f"{number} {operand}" for operand in operands]
    if SCALAR[kind] in ("f16", "bf16"):
        return e.call("float", "k.fma_odd", *arguments)
    if i.has(*_DIRECTED):
        return directed(e, i, "fma", operands, kind)
    return e.call(number, f"llvm.fma.{kind}", *arguments)


def _directed_binary(e: Emitter, i: Instruction, a: str, b: str, kind: str) -> str:
    if i.opcode == "sub":
        b = e.op(f"fneg {compute_type(kind)} {b}")
    operands = (a, b, "-0.0") if i.opcode == "mul" else (a, "1.0", b)
    return directed(e, i, "fma", operands, kind)


def directed(e: Emitter, i: Instruction, name: str, operands: Sequence[str], kind: str) -> str:
    """Round an operation by `.rz`, `.rm` or `.rp`, from its nearest result and the sign of the error."""
    if kind not in ("f32", "f64"):
        raise UnsupportedPtxError(f"directed rounding in {kind}", i)
    number = compute_type(kind)
    pair = f"{{{number}, double}}"
    suffix = ".f64" if kind == "f64" else ""
    mode = next(modifier for modifier in i.modifiers if modifier in _DIRECTED)
    both = e.call(pair, f"k.{name}_with_error{suffix}", *(f"{number} {operand}" for operand in operands))
    return e.call(number, f"k.round_{mode}{suffix}", f"{pair} {both}")


def _reciprocal_root(e: Emitter, a: str, number: str) -> str:
    wide = a if number == "double" else e.op(f"fpext float {a} to double")
    root = e.call("double", "llvm.sqrt.f64", f"double {wide}")
    value = e.op(f"fdiv double 1.0, {root}")
    return value if number == "double" else e.op(f"fptrunc double {value} to float")
