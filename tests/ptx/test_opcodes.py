"""Each opcode on random and extreme operands, against references in Python or numpy."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest

RNG = np.random.default_rng(11)
N = 128
EXTREME_32 = [
    0,
    1,
    2,
    3,
    31,
    32,
    33,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0x55555555,
    255,
    256,
    65535,
    65536,
]
WIDTHS = {"b16": 16, "b32": 32, "b64": 64, "pred": 1}


def bits(n_bits: int, seed: int = 0) -> list[int]:
    """Random and extreme patterns."""
    rng = np.random.default_rng(seed + n_bits)
    mask = (1 << n_bits) - 1
    extreme = [
        (value * (1 << (n_bits - 32)) if n_bits > 32 and value > 65536 else value) & mask for value in EXTREME_32
    ]
    rng.shuffle(extreme)
    return [int(value) & mask for value in rng.integers(0, 1 << 63, N - len(extreme), dtype="uint64")] + extreme


def signed(value: int, n_bits: int) -> int:
    value &= (1 << n_bits) - 1
    return value - (1 << n_bits) if value >> (n_bits - 1) else value


def run(ptx, body: str, columns: Iterable[tuple[str, list[int]]], result: str) -> list[int]:
    """Run `body` for each row of operands: inputs are in %x0, %x1, ..., the result is expected in %y."""
    columns = list(columns)
    registers = "".join(f".reg .{kind} %x{index}; " for index, (kind, _) in enumerate(columns))
    parameters = ", ".join(f".param .u64 in{index}" for index in range(len(columns)))
    loads = "".join(
        f"ld.param.u64 %p, [in{index}]; mad.wide.u32 %p, %i, {WIDTHS[kind] // 8}, %p; "
        f"ld.global.{kind} %x{index}, [%p];\n"
        for index, (kind, _) in enumerate(columns)
    )
    size = WIDTHS[result] // 8
    text = f""".version 9.0
.target sm_90
.address_size 64
.visible .entry k({parameters}, .param .u64 out) {{
.reg .b64 %p; .reg .b32 %i; .reg .{result} %y; {registers}
.reg .pred %q<4>; .reg .b16 %h<8>; .reg .b32 %t<8>; .reg .f32 %f<8>; .reg .b64 %d<8>;
mov.u32 %i, %tid.x;
{loads}{body}
ld.param.u64 %p, [out]; mad.wide.u32 %p, %i, {size}, %p; st.global.{result} [%p], %y;
ret; }}"""
    dtypes = {16: "u2", 32: "u4", 64: "u8"}
    inputs = {f"in{i}": np.array(values, dtypes[WIDTHS[kind]]) for i, (kind, values) in enumerate(columns)}
    outputs = {"out": np.zeros(N, dtypes[WIDTHS[result]])}
    ran = ptx(text).run("k", block=N, inputs=inputs, outputs=outputs)
    assert ran.findings == []
    return [int(value) for value in ran.arrays["out"]]


def check(ptx, instruction: str, kinds: str, result: str, reference: Callable[..., int]) -> None:
    """``instruction`` with operands of the given types computes `reference` of their bit patterns."""
    columns = [(kind, bits(WIDTHS[kind], seed)) for seed, kind in enumerate(kinds.split())]
    operands = ", ".join(["%y", *(f"%x{index}" for index in range(len(columns)))])
    body = instruction if ";" in instruction else f"{instruction} {operands};"
    found = run(ptx, body, columns, result)
    mask = (1 << WIDTHS[result]) - 1
    for row, value in zip(zip(*(values for _, values in columns), strict=True), found, strict=True):
        expected = reference(*row) & mask
        assert value == expected, f"{instruction} of {[hex(x) for x in row]}: {value:#x}, expected {expected:#x}"


def funnel(low, high, amount, *, left, wrap):
    amount = amount & 31 if wrap else min(amount, 32)
    joined = high << 32 | low
    return (joined << amount) >> 32 if left else joined >> amount


def shifted(value, amount, n_bits, *, is_signed=False):
    value = signed(value, n_bits) if is_signed else value
    return value >> min(amount, n_bits if not is_signed else n_bits - 1)


def bit_field(value, position, length, n_bits, *, is_signed):
    position, length = position & 255, length & 255
    last = min(position + length - 1, n_bits - 1)
    fill = value >> last & 1 if is_signed and length else 0
    return sum(
        ((value >> (position + i) & 1) if i < length and position + i < n_bits else fill) << i for i in range(n_bits)
    )


def inserted(a, b, position, length, n_bits):
    position, length = position & 255, length & 255
    for i in range(length):
        if position + i < n_bits:
            b = b & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
    return b


def permuted(a, b, selector):
    source = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = source[nibble & 7]
        result |= (0xFF * (byte >> 7) if nibble & 8 else byte) << 8 * i
    return result


def highest(value, n_bits, *, is_signed=False):
    if is_signed and value >> (n_bits - 1):
        value ^= (1 << n_bits) - 1
    return value.bit_length() - 1


def truncated_quotient(a, b):
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def product_of_bytes(a, b, c, *, kind):
    def part(value, i):
        byte = value >> 8 * i & 255
        return signed(byte, 8) if kind == "s" else byte

    return sum(part(a, i) * part(b, i) for i in range(4)) + c


INTEGER = [
    ("add.s32", "b32 b32", "b32", lambda a, b: a + b),
    ("add.u16", "b16 b16", "b16", lambda a, b: a + b),
    ("sub.s64", "b64 b64", "b64", lambda a, b: a - b),
    ("add.sat.s32", "b32 b32", "b32", lambda a, b: max(-(2**31), min(2**31 - 1, signed(a, 32) + signed(b, 32)))),
    ("sub.sat.s32", "b32 b32", "b32", lambda a, b: max(-(2**31), min(2**31 - 1, signed(a, 32) - signed(b, 32)))),
    ("mul.lo.s32", "b32 b32", "b32", lambda a, b: a * b),
    ("mul.lo.u64", "b64 b64", "b64", lambda a, b: a * b),
    ("mul.hi.u32", "b32 b32", "b32", lambda a, b: a * b >> 32),
    ("mul.hi.s32", "b32 b32", "b32", lambda a, b: signed(a, 32) * signed(b, 32) >> 32),
    ("mul.hi.u64", "b64 b64", "b64", lambda a, b: a * b >> 64),
    ("mul.hi.s64", "b64 b64", "b64", lambda a, b: signed(a, 64) * signed(b, 64) >> 64),
    ("mul.wide.u16", "b16 b16", "b32", lambda a, b: a * b),
    ("mul.wide.s16", "b16 b16", "b32", lambda a, b: signed(a, 16) * signed(b, 16)),
    ("mul.wide.s32", "b32 b32", "b64", lambda a, b: signed(a, 32) * signed(b, 32)),
    ("mad.lo.s32", "b32 b32 b32", "b32", lambda a, b, c: a * b + c),
    ("mad.hi.u32", "b32 b32 b32", "b32", lambda a, b, c: (a * b >> 32) + c),
    ("mad.wide.s32", "b32 b32 b64", "b64", lambda a, b, c: signed(a, 32) * signed(b, 32) + c),
    ("div.u32", "b32 b32", "b32", lambda a, b: a // b if b else -1),
    ("div.s32", "b32 b32", "b32", lambda a, b: truncated_quotient(signed(a, 32), signed(b, 32))),
    ("div.s64", "b64 b64", "b64", lambda a, b: truncated_quotient(signed(a, 64), signed(b, 64))),
    ("div.u16", "b16 b16", "b16", lambda a, b: a // b if b else -1),
    ("rem.u32", "b32 b32", "b32", lambda a, b: a % b if b else a),
    (
        "rem.s32",
        "b32 b32",
        "b32",
        lambda a, b: signed(a, 32) - truncated_quotient(signed(a, 32), signed(b, 32)) * signed(b, 32) if b else a,
    ),
    ("abs.s32", "b32", "b32", lambda a: abs(signed(a, 32))),
    ("neg.s16", "b16", "b16", lambda a: -a),
    ("min.s32", "b32 b32", "b32", lambda a, b: min(signed(a, 32), signed(b, 32))),
    ("max.u64", "b64 b64", "b64", max),
    ("min.u16", "b16 b16", "b16", min),
    ("sad.s32", "b32 b32 b32", "b32", lambda a, b, c: abs(signed(a, 32) - signed(b, 32)) + c),
    ("sad.u32", "b32 b32 b32", "b32", lambda a, b, c: abs(a - b) + c),
    ("and.b32", "b32 b32", "b32", lambda a, b: a & b),
    ("or.b64", "b64 b64", "b64", lambda a, b: a | b),
    ("xor.b16", "b16 b16", "b16", lambda a, b: a ^ b),
    ("not.b32", "b32", "b32", lambda a: ~a),
    ("cnot.b32", "b32", "b32", lambda a: a == 0),
    ("shl.b32", "b32 b32", "b32", lambda a, n: a << n if n < 32 else 0),
    ("shl.b64", "b64 b32", "b64", lambda a, n: a << n if n < 64 else 0),
    ("shl.b16", "b16 b32", "b16", lambda a, n: a << n if n < 16 else 0),
    ("shr.u32", "b32 b32", "b32", lambda a, n: shifted(a, n, 32)),
    ("shr.s32", "b32 b32", "b32", lambda a, n: shifted(a, n, 32, is_signed=True)),
    ("shr.s64", "b64 b32", "b64", lambda a, n: shifted(a, n, 64, is_signed=True)),
    ("shr.s16", "b16 b32", "b16", lambda a, n: shifted(a, n, 16, is_signed=True)),
    ("shf.l.wrap.b32", "b32 b32 b32", "b32", lambda a, b, n: funnel(a, b, n, left=True, wrap=True)),
    ("shf.l.clamp.b32", "b32 b32 b32", "b32", lambda a, b, n: funnel(a, b, n, left=True, wrap=False)),
    ("shf.r.wrap.b32", "b32 b32 b32", "b32", lambda a, b, n: funnel(a, b, n, left=False, wrap=True)),
    ("shf.r.clamp.b32", "b32 b32 b32", "b32", lambda a, b, n: funnel(a, b, n, left=False, wrap=False)),
    ("lop3.b32 %y, %x0, %x1, %x2, 0x96;", "b32 b32 b32", "b32", lambda a, b, c: a ^ b ^ c),
    ("lop3.b32 %y, %x0, %x1, %x2, 0xca;", "b32 b32 b32", "b32", lambda a, b, c: (a & b) | (~a & c)),
    ("bfe.u32", "b32 b32 b32", "b32", lambda a, p, n: bit_field(a, p, n, 32, is_signed=False)),
    ("bfe.s32", "b32 b32 b32", "b32", lambda a, p, n: bit_field(a, p, n, 32, is_signed=True)),
    ("bfe.u64", "b64 b32 b32", "b64", lambda a, p, n: bit_field(a, p, n, 64, is_signed=False)),
    ("bfe.s64", "b64 b32 b32", "b64", lambda a, p, n: bit_field(a, p, n, 64, is_signed=True)),
    ("bfi.b32", "b32 b32 b32 b32", "b32", lambda a, b, p, n: inserted(a, b, p, n, 32)),
    ("bfi.b64", "b64 b64 b32 b32", "b64", lambda a, b, p, n: inserted(a, b, p, n, 64)),
    ("bmsk.clamp.b32", "b32 b32", "b32", lambda a, n: ((1 << min(n, 32)) - 1) << min(a, 32)),
    ("bmsk.wrap.b32", "b32 b32", "b32", lambda a, n: ((1 << n % 32) - 1) << a % 32),
    ("bfind.u32", "b32", "b32", lambda a: highest(a, 32)),
    ("bfind.s32", "b32", "b32", lambda a: highest(a, 32, is_signed=True)),
    ("bfind.u64", "b64", "b32", lambda a: highest(a, 64)),
    ("bfind.shiftamt.u32", "b32", "b32", lambda a: 31 - highest(a, 32) if a else -1),
    ("popc.b32", "b32", "b32", lambda a: a.bit_count()),
    ("popc.b64", "b64", "b32", lambda a: a.bit_count()),
    ("clz.b32", "b32", "b32", lambda a: 32 - a.bit_length()),
    ("clz.b64", "b64", "b32", lambda a: 64 - a.bit_length()),
    ("brev.b32", "b32", "b32", lambda a: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64", "b64", "b64", lambda a: int(f"{a:064b}"[::-1], 2)),
    ("prmt.b32", "b32 b32 b32", "b32", permuted),
    ("add.u16x2", "b32 b32", "b32", lambda a, b: (a + b & 0xFFFF) | ((a >> 16) + (b >> 16) & 0xFFFF) << 16),
    (
        "max.s16x2",
        "b32 b32",
        "b32",
        lambda a, b: (
            max(signed(a, 16), signed(b, 16)) & 0xFFFF | (max(signed(a >> 16, 16), signed(b >> 16, 16)) & 0xFFFF) << 16
        ),
    ),
    ("dp4a.u32.u32", "b32 b32 b32", "b32", lambda a, b, c: product_of_bytes(a, b, c, kind="u")),
    ("dp4a.s32.s32", "b32 b32 b32", "b32", lambda a, b, c: product_of_bytes(a, b, c, kind="s")),
    ("mov.b64 %y, {%x0, %x1};", "b32 b32", "b64", lambda a, b: b << 32 | a),
    ("mov.b32 {%h1, %h2}, %x0; mov.b32 %y, {%h2, %h1};", "b32", "b32", lambda a: (a >> 16) | (a << 16)),
    ("add.cc.u32 %t1, %x0, %x1; addc.u32 %y, %x2, 0;", "b32 b32 b32", "b32", lambda a, b, c: c + (a + b >> 32)),
    (
        "add.cc.u32 %t1, %x0, %x1; addc.cc.u32 %t2, %x2, -1; addc.u32 %y, 0, 0;",
        "b32 b32 b32",
        "b32",
        lambda a, b, c: (c + 0xFFFFFFFF + (a + b >> 32)) >> 32,
    ),
    ("sub.cc.u32 %t1, %x0, %x1; subc.u32 %y, %x2, 7;", "b32 b32 b32", "b32", lambda a, b, c: c - 7 - (a < b)),
    (
        "mad.lo.cc.u32 %t1, %x0, %x1, %x2; madc.hi.u32 %y, %x0, %x1, 0;",
        "b32 b32 b32",
        "b32",
        lambda a, b, c: a * b + c >> 32,
    ),
    ("cvt.s8.s32 %t1, %x0; mov.b32 %y, %t1;", "b32", "b32", lambda a: signed(a, 8)),
    ("cvt.u64.u32", "b32", "b64", lambda a: a),
    ("cvt.s64.s32", "b32", "b64", lambda a: signed(a, 32)),
    ("cvt.sat.u8.s32 %t1, %x0; mov.b32 %y, %t1;", "b32", "b32", lambda a: max(0, min(255, signed(a, 32)))),
    ("cvt.sat.s16.s32 %h1, %x0; cvt.s32.s16 %y, %h1;", "b32", "b32", lambda a: max(-32768, min(32767, signed(a, 32)))),
    ("cvt.sat.s32.u32", "b32", "b32", lambda a: min(a, 2**31 - 1)),
    ("setp.ne.b32 %q1, 0, 0; selp.b32 %y, %x0, %x1, %q1;", "b32 b32", "b32", lambda a, b: b),
    ("slct.b32.s32", "b32 b32 b32", "b32", lambda a, b, c: a if signed(c, 32) >= 0 else b),
]


@pytest.mark.parametrize(("instruction", "kinds", "result", "reference"), INTEGER, ids=[row[0] for row in INTEGER])
def test_integer_instructions(ptx, instruction, kinds, result, reference):
    check(ptx, instruction, kinds, result, reference)


COMPARISONS = {
    "eq.s32": lambda a, b: a == b,
    "ne.b32": lambda a, b: a != b,
    "lt.s32": lambda a, b: signed(a, 32) < signed(b, 32),
    "ge.s32": lambda a, b: signed(a, 32) >= signed(b, 32),
    "lt.u32": lambda a, b: a < b,
    "lo.u32": lambda a, b: a < b,
    "ls.u32": lambda a, b: a <= b,
    "hi.u32": lambda a, b: a > b,
    "hs.u32": lambda a, b: a >= b,
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_integer_comparisons(ptx, name):
    check(ptx, f"setp.{name} %q1, %x0, %x1; selp.b32 %y, 1, 0, %q1;", "b32 b32", "b32", COMPARISONS[name])


def test_a_comparison_gives_two_predicates_combined_with_a_third(ptx):
    body = (
        "setp.lt.u32 %q3, %x2, 1000; setp.lt.and.s32 %q1|%q2, %x0, %x1, !%q3;"
        "selp.b32 %t1, 1, 0, %q1; selp.b32 %t2, 2, 0, %q2; or.b32 %y, %t1, %t2;"
    )

    def reference(a, b, c):
        is_less = signed(a, 32) < signed(b, 32)
        return ((1 if is_less else 2) if c >= 1000 else 0) & 3

    check(ptx, body, "b32 b32 b32", "b32", reference)


# Floats: patterns, and references that round exactly.

FLOAT_EXTREMES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-45,
    1.17549435e-38,
    3.4028235e38,
    0.5,
    1.5,
    2.5,
]


def floats(seed: int) -> list[int]:
    """Patterns of f32: normal numbers of many sizes, and the extremes."""
    rng = np.random.default_rng(100 + seed)
    values = (rng.standard_normal(N - 14) * 2.0 ** rng.integers(-20, 20, N - 14)).astype("f4")
    extremes = np.array(FLOAT_EXTREMES, "f4")
    rng.shuffle(extremes)
    return [int(value) for value in np.concatenate([values, extremes]).view("u4")]


def as_float(pattern: int) -> float:
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def as_half(pattern: int) -> float:
    return struct.unpack("<e", struct.pack("<H", pattern & 0xFFFF))[0]


def as_bfloat(pattern: int) -> float:
    return as_float((pattern & 0xFFFF) << 16)


def exactly(value: float) -> Fraction:
    return Fraction(value)


def rounded(value: Fraction | float, mode: str, step: Callable[[float, float], float]) -> float:
    """The neighbour of `value` among the floats of `step` (a ``nextafter``) that the mode asks for."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    near = step(float(value), float(value))
    error = Fraction(value) - Fraction(near) if math.isfinite(near) else (-1 if near > 0 else 1)
    down, up = step(near, -math.inf), step(near, math.inf)
    if mode == "rm" or (mode == "rz" and value > 0):
        return near if error >= 0 else down
    if mode == "rp" or (mode == "rz" and value < 0):
        return near if error <= 0 else up
    return near


def f32_step(value: float, towards: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.nextafter(np.float32(value), np.float32(towards)))


def check_floats(ptx, instruction, n_operands, reference, *, tolerance_ulp=0, result="b32", to_value=as_float):
    """Compare values; NaN equals NaN, zeros compare with their sign."""
    columns = [("b32", floats(seed)) for seed in range(n_operands)]
    operands = ", ".join(["%y", *(f"%x{index}" for index in range(n_operands))])
    body = instruction if ";" in instruction else f"{instruction} {operands};"
    found = [to_value(value) for value in run(ptx, body, columns, result)]
    for row, value in zip(zip(*(values for _, values in columns), strict=True), found, strict=True):
        operands_as_floats = [as_float(pattern) for pattern in row]
        with np.errstate(all="ignore"):
            expected = reference(*operands_as_floats)
        if isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(value), (operands_as_floats, value)
        elif tolerance_ulp and math.isfinite(expected):
            assert abs(value - expected) <= tolerance_ulp * float(np.spacing(np.float32(abs(expected)))), (
                operands_as_floats,
                value,
                expected,
            )
        else:
            same = value == expected and math.copysign(1, value) == math.copysign(1, expected)
            assert same, f"{instruction} of {operands_as_floats}: {value!r}, expected {expected!r}"


def f32(function):
    """A reference computed by numpy in f32."""
    return lambda *values: float(function(*(np.float32(value) for value in values)))


def exact_fma(a, b, c):
    if not all(math.isfinite(value) for value in (a, b, c)):
        return float(np.float32(a) * np.float32(b) + np.float32(c))
    total = exactly(a) * exactly(b) + exactly(c)
    if total == 0:
        return a * b + c
    return nearest_f32(total)


def nearest_f32(value: Fraction) -> float:
    """Round a fraction to f32, ties to even, without rounding twice."""
    with np.errstate(over="ignore"):
        near = np.float32(float(value))
    candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    finite = [candidate for candidate in candidates if np.isfinite(candidate)]
    if not np.isfinite(near):
        return float(near)

    def distance(candidate):
        is_odd = int(candidate.view("u4")) & 1
        return abs(Fraction(float(candidate)) - value), is_odd

    best = min(finite, key=distance)
    return math.copysign(float(best), value)


def minimum(a, b):
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return min(a, b) if a != b or a else (-0.0 if math.copysign(1, a) < 0 or math.copysign(1, b) < 0 else 0.0)


def maximum(a, b):
    return -minimum(-a, -b)


def saturated(value):
    return 0.0 if math.isnan(value) or value <= 0 else min(value, 1.0)


def flushed(value):
    return math.copysign(0.0, value) if abs(value) < 1.17549435e-38 else value


FLOATS = [
    ("add.f32", 2, f32(np.add)),
    ("add.rn.ftz.f32", 2, lambda a, b: flushed(f32(np.add)(flushed(a), flushed(b)))),
    ("sub.f32", 2, f32(np.subtract)),
    ("mul.rn.f32", 2, f32(np.multiply)),
    ("mul.sat.f32", 2, lambda a, b: saturated(f32(np.multiply)(a, b))),
    ("fma.rn.f32", 3, exact_fma),
    ("div.rn.f32", 2, f32(np.divide)),
    ("div.full.f32", 2, f32(np.divide)),
    ("rcp.rn.f32", 1, lambda a: f32(np.divide)(1.0, a)),
    ("sqrt.rn.f32", 1, f32(np.sqrt)),
    ("neg.f32", 1, lambda a: -a),
    ("abs.f32", 1, abs),
    ("min.f32", 2, minimum),
    ("max.f32", 2, maximum),
    ("min.NaN.f32", 2, lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else minimum(a, b)),
    ("copysign.f32", 2, lambda a, b: math.copysign(b, a)),
    ("cvt.rni.f32.f32", 1, f32(np.rint)),
    ("cvt.rzi.f32.f32", 1, f32(np.trunc)),
    ("cvt.rmi.f32.f32", 1, f32(np.floor)),
    ("cvt.rpi.f32.f32", 1, f32(np.ceil)),
    ("cvt.sat.f32.f32", 1, saturated),
    ("cvt.ftz.f32.f32", 1, flushed),
    ("cvt.f64.f32 %d1, %x0; cvt.rn.f32.f64 %y, %d1;", 1, lambda a: a),
    ("set.gt.f32.f32", 2, lambda a, b: float(a > b)),
]


@pytest.mark.parametrize(("instruction", "n_operands", "reference"), FLOATS, ids=[row[0] for row in FLOATS])
def test_float_instructions(ptx, instruction, n_operands, reference):
    check_floats(ptx, instruction, n_operands, reference)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "div", "rcp", "sqrt", "cvt.f32.f64"])
def test_directed_rounding(ptx, name, mode):
    def exact(a, b=1.0, c=0.0):
        values = {"add": (a, b), "sub": (a, b), "mul": (a, b), "fma": (a, b, c), "div": (a, b), "rcp": (1.0, a)}
        operands = values.get(name, (a,))
        if not all(math.isfinite(value) for value in operands) or 0 in operands:
            return None
        x = [exactly(value) for value in operands]
        results = {
            "add": lambda: x[0] + x[1],
            "sub": lambda: x[0] - x[1],
            "mul": lambda: x[0] * x[1],
            "fma": lambda: x[0] * x[1] + x[2],
            "div": lambda: x[0] / x[1],
            "rcp": lambda: x[0] / x[1],
            "cvt.f32.f64": lambda: x[0] * Fraction(4) / 3,
        }
        return results[name]() if name in results else None

    n_operands = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2}.get(name, 1)
    columns = [("b32", floats(seed)) for seed in range(n_operands)]
    operands = ", ".join(["%y", *(f"%x{index}" for index in range(n_operands))])
    body = f"{name}.{mode}.f32 {operands};"
    if name == "cvt.f32.f64":
        body = f"cvt.f64.f32 %d1, %x0; mul.f64 %d1, %d1, 0d3FF5555555555555; cvt.{mode}.f32.f64 %y, %d1;"
    found = [as_float(value) for value in run(ptx, body, columns, "b32")]
    n_checked = 0
    for row, value in zip(zip(*(values for _, values in columns), strict=True), found, strict=True):
        x = [as_float(pattern) for pattern in row]
        if name == "sqrt":
            if math.isfinite(x[0]) and x[0] > 0:
                below, above = exactly(value) ** 2, exactly(f32_step(value, math.inf)) ** 2
                if mode in ("rz", "rm"):
                    assert below <= exactly(x[0]) < above
                else:
                    assert exactly(f32_step(value, 0)) ** 2 < exactly(x[0]) <= below
                n_checked += 1
            continue
        wanted = exact(*x)
        if wanted is None or wanted == 0 or abs(wanted) > 3.4e38 or abs(wanted) < 1e-30:
            continue
        if name == "cvt.f32.f64":
            wanted = exactly(x[0] * float.fromhex("0x1.5555555555555p+0"))
        n_checked += 1
        assert value == rounded_fraction(wanted, mode), (x, value)
    assert n_checked > N // 3


def rounded_fraction(value: Fraction, mode: str, nearest=nearest_f32, step=f32_step) -> float:
    near = nearest(value)
    if Fraction(near) == value:
        return near
    is_down = mode == "rm" or (mode == "rz" and value > 0)
    if is_down:
        return near if Fraction(near) < value else step(near, -math.inf)
    return near if Fraction(near) > value else step(near, math.inf)


DOUBLE_RESULTS = {
    "add": (2, lambda a, b: a + b),
    "mul": (2, lambda a, b: a * b),
    "fma": (3, lambda a, b, c: a * b + c),
    "div": (2, lambda a, b: a / b),
}


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", DOUBLE_RESULTS)
def test_directed_rounding_of_doubles(ptx, name, mode):
    n_operands, function = DOUBLE_RESULTS[name]
    values = [(np.random.default_rng(seed).standard_normal(N) * 3**seed) for seed in range(n_operands)]
    columns = [("b64", [int(value) for value in column.view("u8")]) for column in values]
    operands = ", ".join(["%y", *(f"%x{index}" for index in range(n_operands))])
    found = np.array(run(ptx, f"{name}.{mode}.f64 {operands};", columns, "b64"), "u8").view("f8")
    for row, value in zip(zip(*values, strict=True), found, strict=True):
        exact = function(*(Fraction(float(one)) for one in row))
        assert value == rounded_fraction(exact, mode, float, math.nextafter)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["s64", "u64"])
@pytest.mark.parametrize("wanted", ["f32", "f64"])
def test_long_integers_to_floats_in_every_direction(ptx, kind, mode, wanted):
    found = run(ptx, f"cvt.{mode}.{wanted}.{kind} %y, %x0;", [("b64", bits(64))], "b32" if wanted == "f32" else "b64")
    for pattern, value in zip(bits(64), found, strict=True):
        exact = Fraction(signed(pattern, 64) if kind[0] == "s" else pattern)
        if wanted == "f32":
            assert as_float(value) == rounded_fraction(exact, mode)
        else:
            read = struct.unpack("<d", struct.pack("<Q", value))[0]
            assert read == rounded_fraction(exact, mode, float, math.nextafter)


APPROXIMATE = [
    ("ex2.approx.f32", lambda a: 2.0**a if a < 128 else math.inf, 1),
    ("ex2.approx.ftz.f32", lambda a: flushed(2.0 ** flushed(a)) if a < 128 else math.inf, 1),
    ("lg2.approx.f32", lambda a: math.log2(a) if a > 0 else (-math.inf if a == 0 else math.nan), 1),
    ("rcp.approx.f32", f32(lambda a: np.float32(1) / a), 1),
    (
        "rsqrt.approx.f32",
        lambda a: 1 / math.sqrt(a) if a > 0 else (math.copysign(math.inf, a) if a == 0 else math.nan),
        1,
    ),
    ("tanh.approx.f32", math.tanh, 2**12),
]


@pytest.mark.parametrize(("instruction", "reference", "ulp"), APPROXIMATE, ids=[row[0] for row in APPROXIMATE])
def test_approximate_functions_are_close(ptx, instruction, reference, ulp):
    def guarded(a):
        if math.isnan(a):
            return math.nan
        if math.isinf(a) and "tanh" not in instruction and "rcp" not in instruction:
            special = {"ex2": math.inf if a > 0 else 0.0, "lg2": math.inf if a > 0 else math.nan}
            return special.get(instruction[:3], 0.0 if a > 0 else math.nan)
        return reference(a)

    check_floats(ptx, instruction, 1, guarded, tolerance_ulp=ulp)


def test_the_approximate_tanh_has_eleven_bits_as_on_a_gpu(ptx):
    with pytest.raises(AssertionError):
        check_floats(
            ptx, "tanh.approx.f32", 1, lambda a: math.nan if math.isnan(a) else math.tanh(a), tolerance_ulp=256
        )


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine_are_as_far_off_as_a_gpu_s(ptx, name):
    """Within 2^-20.5 of the truth up to half a turn (PTX ISA 9.0, `sin`), and with an angle's lost bits beyond."""
    patterns = floats(0)
    found = run(ptx, f"{name}.approx.f32 %y, %x0;", [("b32", patterns)], "b32")
    for angle, value in zip(map(as_float, patterns), map(as_float, found), strict=True):
        if not math.isfinite(angle):
            assert math.isnan(value), angle
        elif abs(angle) < 1e6:
            bound = 2.0**-20.5 if abs(angle) <= math.pi else 2.0**-20.5 + abs(angle) * 2.0**-22
            assert abs(value - getattr(math, name)(angle)) <= bound, angle
    ten_thousand, one = 0x461C4000, 0x3F800000
    far, near, *_ = run(ptx, f"{name}.approx.f32 %y, %x0;", [("b32", [ten_thousand, one] * (N // 2))], "b32")
    assert abs(as_float(far) - getattr(math, name)(1e4)) > 1e-5
    assert as_float(near) * 2**21 == round(as_float(near) * 2**21)


FLOAT_COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b and not (math.isnan(a) or math.isnan(b)),
    "lt": lambda a, b: a < b,
    "geu": lambda a, b: not a < b,
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: not a >= b,
    "equ": lambda a, b: a == b or math.isnan(a) or math.isnan(b),
    "num": lambda a, b: not (math.isnan(a) or math.isnan(b)),
    "nan": lambda a, b: math.isnan(a) or math.isnan(b),
}


@pytest.mark.parametrize("name", FLOAT_COMPARISONS)
def test_float_comparisons(ptx, name):
    body = f"setp.{name}.f32 %q1, %x0, %x1; selp.f32 %y, 0f3F800000, 0f00000000, %q1;"
    check_floats(ptx, body, 2, lambda a, b: float(FLOAT_COMPARISONS[name](a, b)))


PROPERTIES = {
    "finite": math.isfinite,
    "infinite": math.isinf,
    "notanumber": math.isnan,
    "number": lambda a: not math.isnan(a),
    "normal": lambda a: math.isfinite(a) and abs(a) >= 1.17549435e-38,
    "subnormal": lambda a: 0 < abs(a) < 1.17549435e-38,
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_of_floats(ptx, name):
    body = f"testp.{name}.f32 %q1, %x0; selp.f32 %y, 0f3F800000, 0f00000000, %q1;"
    check_floats(ptx, body, 1, lambda a: float(PROPERTIES[name](a)))


@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u8"])
def test_floats_to_integers_are_clamped(ptx, rounding, kind):
    n_bits = int(kind[1:])
    low, high = (-(1 << n_bits - 1), (1 << n_bits - 1) - 1) if kind[0] == "s" else (0, (1 << n_bits) - 1)
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding]

    def reference(pattern):
        value = as_float(pattern)
        if math.isnan(value):
            return 0
        return max(low, min(high, int(function(value)))) if math.isfinite(value) else (high if value > 0 else low)

    result = "b64" if n_bits == 64 else "b32"
    found = run(ptx, f"cvt.{rounding}.{kind}.f32 %y, %x0;", [("b32", floats(3))], result)
    assert found == [reference(pattern) & ((1 << WIDTHS[result]) - 1) for pattern in floats(3)]


@pytest.mark.parametrize(("kind", "width"), [("s32", "b32"), ("u32", "b32"), ("s64", "b64"), ("u64", "b64")])
@pytest.mark.parametrize("wanted", ["f32", "f64"])
def test_integers_to_floats_round_to_nearest(ptx, kind, width, wanted):
    n_bits = WIDTHS[width]
    found = run(ptx, f"cvt.rn.{wanted}.{kind} %y, %x0;", [(width, bits(n_bits))], "b32" if wanted == "f32" else "b64")
    for pattern, value in zip(bits(n_bits), found, strict=True):
        number = signed(pattern, n_bits) if kind[0] == "s" else pattern
        expected = nearest_f32(Fraction(number)) if wanted == "f32" else float(number)
        read = as_float(value) if wanted == "f32" else struct.unpack("<d", struct.pack("<Q", value))[0]
        assert read == expected


def halves(seed: int, *, as_bf16: bool) -> list[int]:
    """Pairs of 16-bit floats in 32 bits."""
    low, high = floats(seed), floats(seed + 50)
    if as_bf16:
        return [(a >> 16) | (b >> 16 << 16) for a, b in zip(low, high, strict=True)]

    def half(pattern):
        with np.errstate(over="ignore"):
            return int(np.float32(as_float(pattern)).astype("f2").view("u2"))

    return [half(a) | half(b) << 16 for a, b in zip(low, high, strict=True)]


def nearest_small(value: Fraction, *, as_bf16: bool) -> float:
    """Round a fraction once to f16 or bf16, ties to even."""
    if value == 0:
        return 0.0
    digits, lowest, largest = (8, -133, 3.3895313892515355e38) if as_bf16 else (11, -24, 65504.0)
    size = abs(value)
    exponent = math.floor(math.log2(size)) if size > 0 else 0
    while Fraction(2) ** exponent > size:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** max(exponent - digits + 1, lowest)
    result = round(size / unit) * unit
    if result > largest:
        return math.copysign(math.inf, value)
    return math.copysign(float(result), value)


SMALL = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "fma.rn": (3, lambda a, b, c: a * b + c),
}


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
@pytest.mark.parametrize("name", SMALL)
def test_packed_small_floats_round_once(ptx, name, kind):
    as_bf16 = kind == "bf16x2"
    n_operands, function = SMALL[name]
    read = as_bfloat if as_bf16 else as_half
    columns = [("b32", halves(seed, as_bf16=as_bf16)) for seed in range(n_operands)]
    operands = ", ".join(["%y", *(f"%x{index}" for index in range(n_operands))])
    found = run(ptx, f"{name}.{kind} {operands};", columns, "b32")
    for row, value in zip(zip(*(values for _, values in columns), strict=True), found, strict=True):
        for shift in (0, 16):
            x = [read(pattern >> shift) for pattern in row]
            if all(math.isfinite(one) for one in x):
                exact = function(*(Fraction(one) for one in x))
                assert read(value >> shift) == nearest_small(exact, as_bf16=as_bf16), (x, read(value >> shift))
            else:
                with np.errstate(all="ignore"):
                    expected = function(*(np.float64(one) for one in x))
                assert str(read(value >> shift)).lstrip("-") == str(float(expected)).lstrip("-")


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_f32_to_small_floats(ptx, kind, mode):
    as_bf16 = kind == "bf16"
    read = as_bfloat if as_bf16 else as_half
    found = run(ptx, f"cvt.{mode}.{kind}.f32 %y, %x0;", [("b32", floats(9))], "b16")
    for pattern, value in zip(floats(9), found, strict=True):
        x = as_float(pattern)
        if not math.isfinite(x):
            assert str(read(value)) == str(x)
            continue
        near = nearest_small(Fraction(x), as_bf16=as_bf16)
        if mode == "rn":
            assert read(value) == near
        else:
            assert abs(read(value)) <= abs(x)
            assert read(value) == near or abs(near) > abs(x)


def test_a_packed_conversion_puts_its_first_operand_high(ptx):
    found = run(ptx, "cvt.rn.f16x2.f32 %y, %x0, %x1;", [("b32", floats(1)), ("b32", floats(2))], "b32")
    with np.errstate(over="ignore"):
        high = np.array(floats(1), "u4").view("f4").astype("f2")
        low = np.array(floats(2), "u4").view("f4").astype("f2")
    values = np.array(found, "u4").view("f2").reshape(-1, 2)
    np.testing.assert_array_equal(values[:, 0], low)
    np.testing.assert_array_equal(values[:, 1], high)


def test_relu_in_a_conversion_keeps_nan(ptx):
    check_floats(
        ptx,
        "cvt.rn.relu.bf16.f32 %h1, %x0; cvt.f32.bf16 %y, %h1;",
        1,
        lambda a: a if math.isnan(a) else max(0.0, nearest_small(Fraction(a), as_bf16=True) if math.isfinite(a) else a),
    )


def test_tf32_keeps_ten_bits_of_mantissa(ptx):
    found = run(ptx, "cvt.rna.tf32.f32 %y, %x0;", [("b32", floats(4))], "b32")
    for pattern, value in zip(floats(4), found, strict=True):
        x = as_float(pattern)
        assert value & 0x1FFF == 0 or math.isnan(x)
        if 1e-30 < abs(x) < 1e38:
            assert abs(as_float(value) - x) <= abs(x) * 2**-11
