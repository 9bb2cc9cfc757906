"""LLVM IR of the PTX operations that LLVM lacks: rounding modes, 16-bit floats, clamped shifts.

Each is `alwaysinline`; `prelude_for` selects those that a text uses. Directed rounding follows from the exact error of
the nearest result: a double holds the product of two floats exactly, and Knuth's two-sum gives the error of adding a
third.
"""

from __future__ import annotations

import re

from kernel_lsp.ptx.compile.ir_text import declarations

_ATTRIBUTES = "alwaysinline nounwind"

_FUNCTIONS = r"""
define internal float @k.half_to_float(i16 %h) #0 {
  %b = bitcast i16 %h to half
  %r = fpext half %b to float
  ret float %r
}
define internal i16 @k.float_to_half(float %x) #0 {
  %h = fptrunc float %x to half
  %b = bitcast half %h to i16
  %nan = fcmp uno float %x, %x
  %r = select i1 %nan, i16 32767, i16 %b
  ret i16 %r
}
define internal float @k.bfloat_to_float(i16 %h) #0 {
  %w = zext i16 %h to i32
  %s = shl i32 %w, 16
  %r = bitcast i32 %s to float
  ret float %r
}
define internal i16 @k.float_to_bfloat(float %x) #0 {
  %b = bitcast float %x to i32
  %t = lshr i32 %b, 16
  %lsb = and i32 %t, 1
  %bias = add i32 %lsb, 32767
  %sum = add i32 %b, %bias
  %hi = lshr i32 %sum, 16
  %n = trunc i32 %hi to i16
  %nan = fcmp uno float %x, %x
  %r = select i1 %nan, i16 32767, i16 %n
  ret i16 %r
}
define internal i16 @k.float_to_bfloat_rz(float %x) #0 {
  %b = bitcast float %x to i32
  %hi = lshr i32 %b, 16
  %n = trunc i32 %hi to i16
  %nan = fcmp uno float %x, %x
  %r = select i1 %nan, i16 32767, i16 %n
  ret i16 %r
}
define internal i16 @k.float_to_half_rz(float %x) #0 {
  %n = call i16 @k.float_to_half(float %x)
  %back = call float @k.half_to_float(i16 %n)
  %m = call float @llvm.fabs.f32(float %x)
  %bm = call float @llvm.fabs.f32(float %back)
  %over = fcmp ogt float %bm, %m
  %d = sub i16 %n, 1
  %r = select i1 %over, i16 %d, i16 %n
  ret i16 %r
}
define internal i32 @k.float_to_tf32(float %x) #0 {
  %b = bitcast float %x to i32
  %sum = add i32 %b, 4096
  %m = and i32 %sum, -8192
  %nan = fcmp uno float %x, %x
  %r = select i1 %nan, i32 2147483647, i32 %m
  ret i32 %r
}
define internal float @k.canonical(float %x) #0 {
  %b = bitcast float %x to i32
  %nan = fcmp uno float %x, %x
  %bits = select i1 %nan, i32 2147483647, i32 %b
  %r = bitcast i32 %bits to float
  ret float %r
}
define internal float @k.ftz(float %x) #0 {
  %m = call float @llvm.fabs.f32(float %x)
  %tiny = fcmp olt float %m, 0x3810000000000000
  %zero = call float @llvm.copysign.f32(float 0.0, float %x)
  %r = select i1 %tiny, float %zero, float %x
  ret float %r
}
define internal float @k.sat.f32(float %x) #0 {
  %lo = fcmp ogt float %x, 0.0
  %a = select i1 %lo, float %x, float 0.0
  %hi = fcmp olt float %a, 1.0
  %r = select i1 %hi, float %a, float 1.0
  ret float %r
}
define internal double @k.sat.f64(double %x) #0 {
  %lo = fcmp ogt double %x, 0.0
  %a = select i1 %lo, double %x, double 0.0
  %hi = fcmp olt double %a, 1.0
  %r = select i1 %hi, double %a, double 1.0
  ret double %r
}
define internal {float, double} @k.fma_with_error(float %a, float %b, float %c) #0 {
  %da = fpext float %a to double
  %db = fpext float %b to double
  %dc = fpext float %c to double
  %p = fmul double %da, %db
  %s = fadd double %p, %dc
  %bb = fsub double %s, %p
  %aa = fsub double %s, %bb
  %ea = fsub double %p, %aa
  %eb = fsub double %dc, %bb
  %err = fadd double %ea, %eb
  %r = fptrunc double %s to float
  %dr = fpext float %r to double
  %d = fsub double %s, %dr
  %e = fadd double %d, %err
  PAIR {float, double} %r, %e
}
define internal {float, double} @k.div_with_error(float %a, float %b) #0 {
  %r = fdiv float %a, %b
  %da = fpext float %a to double
  %db = fpext float %b to double
  %dr = fpext float %r to double
  %p = fmul double %dr, %db
  %d = fsub double %da, %p
  %neg = fcmp olt float %b, 0.0
  %nd = fneg double %d
  %e = select i1 %neg, double %nd, double %d
  PAIR {float, double} %r, %e
}
define internal {float, double} @k.sqrt_with_error(float %a) #0 {
  %r = call float @llvm.sqrt.f32(float %a)
  %da = fpext float %a to double
  %dr = fpext float %r to double
  %p = fmul double %dr, %dr
  %e = fsub double %da, %p
  PAIR {float, double} %r, %e
}
define internal {float, double} @k.truncate_with_error(double %a) #0 {
  %r = fptrunc double %a to float
  %dr = fpext float %r to double
  %e = fsub double %a, %dr
  PAIR {float, double} %r, %e
}
define internal {float, double} @k.sum_with_error(double %a, double %b) #0 {
  %v = call {double, double} @k.two_sum(double %a, double %b)
  %s = extractvalue {double, double} %v, 0
  %err = extractvalue {double, double} %v, 1
  %r = fptrunc double %s to float
  %dr = fpext float %r to double
  %d = fsub double %s, %dr
  %e = fadd double %d, %err
  PAIR {float, double} %r, %e
}
define internal {double, double} @k.two_sum(double %a, double %b) #0 {
  %s = fadd double %a, %b
  %bb = fsub double %s, %a
  %aa = fsub double %s, %bb
  %ea = fsub double %a, %aa
  %eb = fsub double %b, %bb
  %err = fadd double %ea, %eb
  PAIR {double, double} %s, %err
}
define internal {double, double} @k.fma_with_error.f64(double %a, double %b, double %c) #0 {
  %r = call double @llvm.fma.f64(double %a, double %b, double %c)
  %ph = fmul double %a, %b
  %nph = fneg double %ph
  %pl = call double @llvm.fma.f64(double %a, double %b, double %nph)
  %low = call {double, double} @k.two_sum(double %c, double %pl)
  %l0 = extractvalue {double, double} %low, 0
  %l1 = extractvalue {double, double} %low, 1
  %high = call {double, double} @k.two_sum(double %ph, double %l0)
  %h0 = extractvalue {double, double} %high, 0
  %h1 = extractvalue {double, double} %high, 1
  %d = fsub double %h0, %r
  %g = fadd double %d, %h1
  %e = fadd double %g, %l1
  PAIR {double, double} %r, %e
}
define internal {double, double} @k.div_with_error.f64(double %a, double %b) #0 {
  %r = fdiv double %a, %b
  %nr = fneg double %r
  %d = call double @llvm.fma.f64(double %nr, double %b, double %a)
  %neg = fcmp olt double %b, 0.0
  %nd = fneg double %d
  %e = select i1 %neg, double %nd, double %d
  PAIR {double, double} %r, %e
}
define internal {double, double} @k.sqrt_with_error.f64(double %a) #0 {
  %r = call double @llvm.sqrt.f64(double %a)
  %nr = fneg double %r
  %e = call double @llvm.fma.f64(double %nr, double %r, double %a)
  PAIR {double, double} %r, %e
}
define internal float @k.step_up(float %x) #0 {
  %b = bitcast float %x to i32
  %neg = fcmp olt float %x, 0.0
  %inc = select i1 %neg, i32 -1, i32 1
  %n = add i32 %b, %inc
  %zero = fcmp oeq float %x, 0.0
  %s = select i1 %zero, i32 1, i32 %n
  %r = bitcast i32 %s to float
  ret float %r
}
define internal float @k.step_down(float %x) #0 {
  %n = fneg float %x
  %u = call float @k.step_up(float %n)
  %r = fneg float %u
  ret float %r
}
define internal float @k.round_rm({float, double} %v) #0 {
  %r = extractvalue {float, double} %v, 0
  %e = extractvalue {float, double} %v, 1
  %c = fcmp olt double %e, 0.0
  %s = call float @k.step_down(float %r)
  %o = select i1 %c, float %s, float %r
  ret float %o
}
define internal float @k.round_rp({float, double} %v) #0 {
  %r = extractvalue {float, double} %v, 0
  %e = extractvalue {float, double} %v, 1
  %c = fcmp ogt double %e, 0.0
  %s = call float @k.step_up(float %r)
  %o = select i1 %c, float %s, float %r
  ret float %o
}
define internal float @k.round_rz({float, double} %v) #0 {
  %r = extractvalue {float, double} %v, 0
  %e = extractvalue {float, double} %v, 1
  %dr = fpext float %r to double
  %pos = fcmp ogt double %dr, 0.0
  %down = call float @k.round_rm({float, double} %v)
  %up = call float @k.round_rp({float, double} %v)
  %o = select i1 %pos, float %down, float %up
  %zero = fcmp oeq float %r, 0.0
  %z = select i1 %zero, float %r, float %o
  ret float %z
}
define internal float @k.round_odd({float, double} %v) #0 {
  %r = extractvalue {float, double} %v, 0
  %e = extractvalue {float, double} %v, 1
  %b = bitcast float %r to i32
  %lsb = trunc i32 %b to i1
  %exact = fcmp ueq double %e, 0.0
  %keep = or i1 %lsb, %exact
  %pos = fcmp ogt double %e, 0.0
  %up = call float @k.step_up(float %r)
  %down = call float @k.step_down(float %r)
  %s = select i1 %pos, float %up, float %down
  %o = select i1 %keep, float %r, float %s
  ret float %o
}
define internal float @k.fma_odd(float %a, float %b, float %c) #0 {
  %v = call {float, double} @k.fma_with_error(float %a, float %b, float %c)
  %r = call float @k.round_odd({float, double} %v)
  ret float %r
}
define internal float @k.double_to_odd(double %a) #0 {
  %v = call {float, double} @k.truncate_with_error(double %a)
  %r = call float @k.round_odd({float, double} %v)
  ret float %r
}
define internal i32 @k.prmt(i32 %a, i32 %b, i32 %c) #0 {
  %za = zext i32 %a to i64
  %zb = zext i32 %b to i64
  %hb = shl i64 %zb, 32
  %all = or i64 %za, %hb
  %b0 = call i32 @k.prmt_byte(i64 %all, i32 %c, i32 0)
  %b1 = call i32 @k.prmt_byte(i64 %all, i32 %c, i32 1)
  %b2 = call i32 @k.prmt_byte(i64 %all, i32 %c, i32 2)
  %b3 = call i32 @k.prmt_byte(i64 %all, i32 %c, i32 3)
  %o1 = or i32 %b0, %b1
  %o2 = or i32 %b2, %b3
  %r = or i32 %o1, %o2
  ret i32 %r
}
define internal i32 @k.prmt_byte(i64 %all, i32 %c, i32 %i) #0 {
  %s = shl i32 %i, 2
  %n = lshr i32 %c, %s
  %sel = and i32 %n, 7
  %sh = shl i32 %sel, 3
  %sh64 = zext i32 %sh to i64
  %v = lshr i64 %all, %sh64
  %byte = trunc i64 %v to i8
  %sign = and i32 %n, 8
  %is = icmp ne i32 %sign, 0
  %rep = ashr i8 %byte, 7
  %o = select i1 %is, i8 %rep, i8 %byte
  %w = zext i8 %o to i32
  %p = shl i32 %i, 3
  %r = shl i32 %w, %p
  ret i32 %r
}
"""
_TEMPLATES = r"""
define internal iN @k.shl.iN(iN %a, i32 %n) #0 {
  %w = WIDEN
  %s = shl iN %a, %w
  %c = icmp ult i32 %n, N
  %r = select i1 %c, iN %s, iN 0
  ret iN %r
}
define internal iN @k.lshr.iN(iN %a, i32 %n) #0 {
  %w = WIDEN
  %s = lshr iN %a, %w
  %c = icmp ult i32 %n, N
  %r = select i1 %c, iN %s, iN 0
  ret iN %r
}
define internal iN @k.ashr.iN(iN %a, i32 %n) #0 {
  %c = icmp ult i32 %n, N
  %m = select i1 %c, i32 %n, i32 LAST
  %w = WIDENM
  %r = ashr iN %a, %w
  ret iN %r
}
define internal iN @k.udiv.iN(iN %a, iN %b) #0 {
  %z = icmp eq iN %b, 0
  %d = select i1 %z, iN 1, iN %b
  %q = udiv iN %a, %d
  %r = select i1 %z, iN -1, iN %q
  ret iN %r
}
define internal iN @k.urem.iN(iN %a, iN %b) #0 {
  %z = icmp eq iN %b, 0
  %d = select i1 %z, iN 1, iN %b
  %q = urem iN %a, %d
  %r = select i1 %z, iN %a, iN %q
  ret iN %r
}
define internal iN @k.sdiv.iN(iN %a, iN %b) #0 {
  %z = icmp eq iN %b, 0
  %m = icmp eq iN %b, -1
  %u = or i1 %z, %m
  %d = select i1 %u, iN 1, iN %b
  %q = sdiv iN %a, %d
  %n = sub iN 0, %a
  %q2 = select i1 %m, iN %n, iN %q
  %r = select i1 %z, iN -1, iN %q2
  ret iN %r
}
define internal iN @k.srem.iN(iN %a, iN %b) #0 {
  %z = icmp eq iN %b, 0
  %m = icmp eq iN %b, -1
  %u = or i1 %z, %m
  %d = select i1 %u, iN 1, iN %b
  %q = srem iN %a, %d
  %q2 = select i1 %m, iN 0, iN %q
  %r = select i1 %z, iN %a, iN %q2
  ret iN %r
}
define internal iN @k.bfe_u.iN(iN %a, i32 %pos, i32 %len) #0 {
  %s = call iN @k.lshr.iN(iN %a, i32 %pos)
  %ones = call iN @k.shl.iN(iN -1, i32 %len)
  %mask = xor iN %ones, -1
  %r = and iN %s, %mask
  ret iN %r
}
define internal iN @k.bfe_s.iN(iN %a, i32 %pos, i32 %len) #0 {
  %end = add i32 %pos, %len
  %fits = icmp ult i32 %end, N
  %e = select i1 %fits, i32 %end, i32 N
  %up = sub i32 N, %e
  %l = call iN @k.shl.iN(iN %a, i32 %up)
  %keep = sub i32 N, %len
  %down0 = select i1 %fits, i32 %keep, i32 %pos
  %s = call iN @k.ashr.iN(iN %l, i32 %down0)
  %empty = icmp eq i32 %len, 0
  %r = select i1 %empty, iN 0, iN %s
  ret iN %r
}
define internal iN @k.bfi.iN(iN %a, iN %b, i32 %pos, i32 %len) #0 {
  %ones = call iN @k.shl.iN(iN -1, i32 %len)
  %low = xor iN %ones, -1
  %mask = call iN @k.shl.iN(iN %low, i32 %pos)
  %keep = xor iN %mask, -1
  %ins = call iN @k.shl.iN(iN %a, i32 %pos)
  %i = and iN %ins, %mask
  %o = and iN %b, %keep
  %r = or iN %i, %o
  ret iN %r
}
"""
_PAIR = r"""%v0 = insertvalue \1 undef, \2 \3, 0
  %v1 = insertvalue \1 %v0, double \4, 1
  ret \1 %v1"""
"""Text of ``PAIR {type, double} result, error``, which returns a result with its error."""
_ROUNDING = ("k.step_up", "k.step_down", "k.round_rm", "k.round_rp", "k.round_rz")
"""Definitions for float from which those for double are derived."""


def prelude_for(text: str) -> str:
    """Return the definitions and declarations that `text` needs, as a prefix for it."""
    needed: dict[str, str] = {}
    _collect(text, needed)
    definitions = "\n".join(needed.values())
    return f"{definitions}\n{declarations(definitions + text)}\nattributes #0 = {{ {_ATTRIBUTES} }}\n"


def _collect(text: str, needed: dict[str, str]) -> None:
    for name in re.findall(r"@(k\.[\w.]+)\(", text):
        if name not in needed:
            needed[name] = _DEFINITIONS[name]
            _collect(_DEFINITIONS[name], needed)


def _widen(bits: int, amount: str) -> str:
    if bits == 32:
        return f"add i32 {amount}, 0"
    return f"trunc i32 {amount} to i16" if bits == 16 else f"zext i32 {amount} to i64"


def _all_definitions() -> dict[str, str]:
    text = _FUNCTIONS
    for bits in (16, 32, 64):
        instance = _TEMPLATES.replace("WIDENM", _widen(bits, "%m")).replace("WIDEN", _widen(bits, "%n"))
        instance = instance.replace("LAST", str(bits - 1)).replace("i32 N", f"i32 {bits}")
        instance = instance.replace("%n, N", f"%n, {bits}").replace("%end, N", f"%end, {bits}")
        text += re.sub(r"\biN\b", f"i{bits}", instance)
    found = {}
    text = re.sub(r"PAIR (\{(\w+), double\}) (%\w+), (%\w+)", _PAIR, text)
    for definition in re.findall(r"define .*?\n}\n", text, re.DOTALL):
        name = re.search(r"@(k\.[\w.]+)\(", definition)
        if name:
            found[name.group(1)] = definition
    for rounding in _ROUNDING:
        found[f"{rounding}.f64"] = _for_double(found[rounding])
    return found


def _for_double(definition: str) -> str:
    text = re.sub(r"@(k\.\w+)\(", r"@\1.f64(", definition)
    text = text.replace("  %dr = fpext float %r to double\n  %pos = fcmp ogt double %dr", "  %pos = fcmp ogt double %r")
    return text.replace("float", "double").replace("i32", "i64")


_DEFINITIONS = _all_definitions()
