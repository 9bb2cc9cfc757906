"""Translate integer, bit and move instructions."""

from __future__ import annotations

from kernel_lsp.ptx.compile.clusters import generic_from_shared, is_shared, shared_from_generic
from kernel_lsp.ptx.compile.emitter import Emitter, Handler
from kernel_lsp.ptx.compile.register_ir import INTEGER_BITS, llvm_type
from kernel_lsp.ptx.run.layout import FIRST_BUFFER_WINDOW, FIRST_CLUSTER_WINDOW, SHARED_WINDOW, window_base
from kernel_lsp.ptx.text.syntax import CARRY, WIDTH_BITS, Instruction, Operand, Register, UnsupportedPtxError, Vector


def is_integer(instruction: Instruction) -> bool:
    """Check whether the (last) type of the instruction is an integer or bit type."""
    kinds = instruction.types()
    return bool(kinds) and kinds[-1][0] in "busp" and kinds[-1] not in ("bf16", "bf16x2")


def move(e: Emitter, i: Instruction) -> None:
    """Translate `mov`, which also packs and unpacks vectors."""
    kind = llvm_type(i.types()[-1])
    target, source = i.operands
    if isinstance(target, Vector):
        unpack(e, target, e.read(source, f"i{WIDTH_BITS[i.types()[-1]]}"), WIDTH_BITS[i.types()[-1]])
    elif isinstance(source, Vector):
        e.write(target, pack(e, source, WIDTH_BITS[i.types()[-1]]), f"i{WIDTH_BITS[i.types()[-1]]}")
    else:
        e.write(target, e.read(source, kind), kind)


def unpack(e: Emitter, target: Vector, value: str, n_bits: int) -> None:
    """Spread `value` over the registers of `target`, first element lowest."""
    width = n_bits // len(target.elements)
    for index, element in enumerate(target.elements):
        shifted = e.op(f"lshr i{n_bits} {value}, {index * width}") if index else value
        e.write(element, e.coerce(shifted, f"i{n_bits}", f"i{width}"), f"i{width}")


def pack(e: Emitter, source: Vector, n_bits: int) -> str:
    """Return the elements of `source` as one integer, first element lowest."""
    width = n_bits // len(source.elements)
    total = "0"
    for index, element in enumerate(source.elements):
        part = e.coerce(e.read(element, f"i{width}"), f"i{width}", f"i{n_bits}")
        shifted = e.op(f"shl i{n_bits} {part}, {index * width}") if index else part
        total = e.op(f"or i{n_bits} {total}, {shifted}") if index else part
    return total


def address_conversion(e: Emitter, i: Instruction) -> None:
    """Translate `cvta`: only shared and local memory have address spaces distinct from generic addresses."""
    target, source = i.operands
    width = llvm_type(i.types()[-1])
    base = _window_of(i)
    value = e.read(source, width)
    if base and e.maps_addresses and not i.has("local"):
        address = e.coerce(value, width, "i64")
        address = shared_from_generic(e, address) if i.has("to") else generic_from_shared(e, address)
        value = e.coerce(address, "i64", width)
    elif base:
        value = e.op(f"{'sub' if i.has('to') else 'add'} {width} {value}, {base}")
    e.write(target, value, width)


def is_space(e: Emitter, i: Instruction) -> None:
    """Translate `isspacep`: test the window of an address."""
    target, source = i.operands
    window = e.op(f"lshr i64 {e.read(source, 'i64')}, 40")
    if i.has("shared", "shared__cta", "shared__cluster"):
        e.write(target, is_shared(e, window, in_cluster=i.has("shared__cluster")), "i1")
    elif i.has("local", "const", "param"):
        number = {"local": 2, "param": 3}.get(i.modifiers[0], -1)
        e.write(target, e.op(f"icmp eq i64 {window}, {number}"), "i1")
    else:
        is_buffer = e.op(f"icmp ult i64 {e.op(f'sub i64 {window}, {FIRST_BUFFER_WINDOW}')}, {_N_BUFFER_WINDOWS}")
        e.write(target, is_buffer, "i1")


def add_or_subtract(e: Emitter, i: Instruction) -> None:
    """Translate `add` and `sub` of integers, with `.sat` and `.cc`."""
    kind, name = i.types()[-1], i.opcode
    target, a, b = i.operands
    width = llvm_type(kind)
    left, right = e.read(a, width), e.read(b, width)
    if i.has("sat"):
        e.write(target, e.call(width, f"llvm.s{name}.sat.{width}", f"{width} {left}", f"{width} {right}"), width)
    elif i.has("cc"):
        e.write(target, _with_carry(e, name, width, left, right), width)
    else:
        e.write(target, e.op(f"{name} {width} {left}, {right}"), width)


def add_with_carry(e: Emitter, i: Instruction) -> None:
    """Translate `addc` and `subc`, which read the carry flag and, with `.cc`, write it."""
    name = i.opcode[:3]
    width = llvm_type(i.types()[-1])
    target, a, b = i.operands
    e.write(target, carry_chain(e, name, width, (e.read(a, width), e.read(b, width)), sets_carry=i.has("cc")), width)


def carry_chain(e: Emitter, name: str, width: str, operands: tuple[str, str], *, sets_carry: bool) -> str:
    """Compute ``a ± b ± carry``."""
    wide = f"i{INTEGER_BITS[width] + 1}"
    carry = e.op(f"zext i1 {e.read(Register(CARRY), 'i1')} to {wide}")
    left, right = (e.op(f"zext {width} {value} to {wide}") for value in operands)
    total = e.op(f"{name} {wide} {e.op(f'{name} {wide} {left}, {right}')}, {carry}")
    if sets_carry:
        high = e.op(f"lshr {wide} {total}, {INTEGER_BITS[width]}")
        e.write(Register(CARRY), e.op(f"trunc {wide} {high} to i1"), "i1")
    return e.op(f"trunc {wide} {total} to {width}")


def multiply(e: Emitter, i: Instruction) -> None:
    """Translate `mul.lo`, `mul.hi` and `mul.wide`."""
    target, a, b = i.operands
    value, width = product(e, i, a, b)
    e.write(target, value, width)


def product(e: Emitter, i: Instruction, a: Operand, b: Operand) -> tuple[str, str]:
    """Return the product for `.lo`, `.hi` or `.wide`, and its LLVM type."""
    kind = i.types()[-1]
    width, n_bits = llvm_type(kind), WIDTH_BITS[kind]
    left, right = e.read(a, width), e.read(b, width)
    if not i.has("hi", "wide"):
        return e.op(f"mul {width} {left}, {right}"), width
    extend, wide = ("sext" if kind[0] == "s" else "zext"), f"i{2 * n_bits}"
    left, right = (e.op(f"{extend} {width} {value} to {wide}") for value in (left, right))
    total = e.op(f"mul {wide} {left}, {right}")
    if i.has("wide"):
        return total, wide
    return e.op(f"trunc {wide} {e.op(f'lshr {wide} {total}, {n_bits}')} to {width}"), width


def multiply_add(e: Emitter, i: Instruction) -> None:
    """Translate `mad` and `madc`."""
    target, a, b, c = i.operands
    value, width = product(e, i, a, b)
    addend = e.read(c, width)
    if i.has("sat"):
        raise UnsupportedPtxError("a saturating mad", i)
    if i.opcode == "madc":
        total = carry_chain(e, "add", width, (value, addend), sets_carry=i.has("cc"))
    elif i.has("cc"):
        total = _with_carry(e, "add", width, value, addend)
    else:
        total = e.op(f"add {width} {value}, {addend}")
    e.write(target, total, width)


def divide_or_remainder(e: Emitter, i: Instruction) -> None:
    """Translate `div` and `rem` of integers. Division by zero gives all ones and the dividend, as on the hardware."""
    target, a, b = i.operands
    kind = i.types()[-1]
    width = llvm_type(kind)
    name = f"k.{'s' if kind[0] == 's' else 'u'}{i.opcode}.{width}"
    e.write(target, e.call(width, name, f"{width} {e.read(a, width)}", f"{width} {e.read(b, width)}"), width)


def absolute(e: Emitter, i: Instruction) -> None:
    width = llvm_type(i.types()[-1])
    value = e.read(i.operands[1], width)
    e.write(i.operands[0], e.call(width, f"llvm.abs.{width}", f"{width} {value}", "i1 false"), width)


def negate(e: Emitter, i: Instruction) -> None:
    width = llvm_type(i.types()[-1])
    e.write(i.operands[0], e.op(f"sub {width} 0, {e.read(i.operands[1], width)}"), width)


def minimum_or_maximum(e: Emitter, i: Instruction) -> None:
    kind = i.types()[-1]
    width = llvm_type(kind)
    target, a, b = i.operands
    value = _extreme(e, i, width, e.read(a, width), e.read(b, width))
    e.write(target, value, width)


def packed(e: Emitter, i: Instruction) -> None:
    """Translate `add`, `sub`, `min` and `max` of packed pairs of 16-bit integers."""
    target, *sources = i.operands
    pairs = [_halves(e, e.read(source, "i32")) for source in sources]
    results = []
    for left, right in zip(*pairs, strict=True):
        if i.opcode in ("add", "sub"):
            results.append(e.op(f"{i.opcode} i16 {left}, {right}"))
        else:
            results.append(_extreme(e, i, "i16", left, right))
    low, high = (e.coerce(result, "i16", "i32") for result in results)
    e.write(target, e.op(f"or i32 {low}, {e.op(f'shl i32 {high}, 16')}"), "i32")


def logic(e: Emitter, i: Instruction) -> None:
    """Translate `and`, `or` and `xor`."""
    width = llvm_type(i.types()[-1])
    target, a, b = i.operands
    e.write(target, e.op(f"{i.opcode} {width} {e.read(a, width)}, {e.read(b, width)}"), width)


def logical_not(e: Emitter, i: Instruction) -> None:
    """Translate `not`, and `cnot`, which is C's ``!``."""
    width = llvm_type(i.types()[-1])
    value = e.read(i.operands[1], width)
    if i.opcode == "not":
        e.write(i.operands[0], e.op(f"xor {width} -1, {value}" if width != "i1" else f"xor i1 true, {value}"), width)
    else:
        e.write(i.operands[0], e.op(f"zext i1 {e.op(f'icmp eq {width} {value}, 0')} to {width}"), width)


def shift(e: Emitter, i: Instruction) -> None:
    """Translate `shl` and `shr`, which clamp the shift amount."""
    kind = i.types()[-1]
    width = llvm_type(kind)
    target, a, amount = i.operands
    name = "shl" if i.opcode == "shl" else ("ashr" if kind[0] == "s" else "lshr")
    arguments = f"{width} {e.read(a, width)}", f"i32 {e.read(amount, 'i32')}"
    e.write(target, e.call(width, f"k.{name}.{width}", *arguments), width)


def funnel_shift(e: Emitter, i: Instruction) -> None:
    """Translate `shf`: {b, a} shifted, the high half for `.l` and the low half for `.r`."""
    target, a, b, c = i.operands
    amount = e.read(c, "i32")
    low, high = e.read(a, "i32"), e.read(b, "i32")
    shifted = e.op(f"shl i64 {e.coerce(high, 'i32', 'i64')}, 32")
    joined = e.op(f"or i64 {shifted}, {e.coerce(low, 'i32', 'i64')}")
    if i.has("wrap"):
        amount = e.op(f"and i32 {amount}, 31")
    else:
        amount = e.call("i32", "llvm.umin.i32", f"i32 {amount}", "i32 32")
    wide = e.op(f"zext i32 {amount} to i64")
    if i.has("l"):
        value = e.op(f"lshr i64 {e.op(f'shl i64 {joined}, {wide}')}, 32")
    else:
        value = e.op(f"lshr i64 {joined}, {wide}")
    e.write(target, e.op(f"trunc i64 {value} to i32"), "i32")


def lookup_logic(e: Emitter, i: Instruction) -> None:
    """Translate `lop3`, a bitwise function of three inputs given by its truth table."""
    target, a, b, c, table = i.operands[:5]
    if i.has("and", "or"):
        raise UnsupportedPtxError("lop3 with a predicate", i)
    inputs = [e.read(operand, "i32") for operand in (a, b, c)]
    inverted = [e.op(f"xor i32 -1, {value}") for value in inputs]
    bits = int(e.literal(table, "i32"))  # type: ignore[arg-type]  # PTX has an immediate here
    total = "0"
    for row in range(8):
        if bits >> row & 1:
            terms = [inputs[k] if row >> (2 - k) & 1 else inverted[k] for k in range(3)]
            term = e.op(f"and i32 {e.op(f'and i32 {terms[0]}, {terms[1]}')}, {terms[2]}")
            total = e.op(f"or i32 {total}, {term}")
    e.write(target, total, "i32")


def extract_bits(e: Emitter, i: Instruction) -> None:
    kind = i.types()[-1]
    width = llvm_type(kind)
    target, a, position, length = i.operands
    name = f"k.bfe_{'s' if kind[0] == 's' else 'u'}.{width}"
    fields = [_bit_field(e, operand) for operand in (position, length)]
    e.write(target, e.call(width, name, f"{width} {e.read(a, width)}", *fields), width)


def insert_bits(e: Emitter, i: Instruction) -> None:
    width = llvm_type(i.types()[-1])
    target, a, b, position, length = i.operands
    fields = [_bit_field(e, operand) for operand in (position, length)]
    values = f"{width} {e.read(a, width)}", f"{width} {e.read(b, width)}"
    e.write(target, e.call(width, f"k.bfi.{width}", *values, *fields), width)


def make_mask(e: Emitter, i: Instruction) -> None:
    """Translate ``bmsk.mode.b32 d, a, b``: `b` bits starting at bit `a`. Numbers past 31 clamp or wrap."""
    target, *fields = i.operands
    wide = [e.coerce(e.read(field, "i32"), "i32", "i64") for field in fields]
    if i.has("wrap"):
        first, n_bits = (e.op(f"and i64 {field}, 31") for field in wide)
    else:
        first, n_bits = (e.call("i64", "llvm.umin.i64", f"i64 {field}", "i64 32") for field in wide)
    ones = e.op(f"sub i64 {e.op(f'shl i64 1, {n_bits}')}, 1")
    e.write(target, e.op(f"shl i64 {ones}, {first}"), "i64")


def find_first_bit(e: Emitter, i: Instruction) -> None:
    """Translate `bfind`: position of the highest bit that differs from the sign (or from 0), else all ones."""
    kind = i.types()[-1]
    width, n_bits = llvm_type(kind), WIDTH_BITS[kind]
    value = e.read(i.operands[1], width)
    if kind[0] == "s":
        value = e.op(f"xor {width} {value}, {e.op(f'ashr {width} {value}, {n_bits - 1}')}")
    leading = e.call(width, f"llvm.ctlz.{width}", f"{width} {value}", "i1 false")
    position = leading if i.has("shiftamt") else e.op(f"sub {width} {n_bits - 1}, {leading}")
    found = e.op(f"icmp ne {width} {value}, 0")
    result = e.op(f"select i1 {found}, {width} {position}, {width} -1")
    e.write(i.operands[0], e.coerce(result, width, "i32"), "i32")


def count_bits(e: Emitter, i: Instruction) -> None:
    """Translate `popc` and `clz`."""
    width = llvm_type(i.types()[-1])
    arguments = [f"{width} {e.read(i.operands[1], width)}"]
    name = "ctpop"
    if i.opcode == "clz":
        name, arguments = "ctlz", [*arguments, "i1 false"]
    e.write(i.operands[0], e.coerce(e.call(width, f"llvm.{name}.{width}", *arguments), width, "i32"), "i32")


def reverse_bits(e: Emitter, i: Instruction) -> None:
    width = llvm_type(i.types()[-1])
    value = e.call(width, f"llvm.bitreverse.{width}", f"{width} {e.read(i.operands[1], width)}")
    e.write(i.operands[0], value, width)


def permute_bytes(e: Emitter, i: Instruction) -> None:
    target, a, b, c = i.operands
    if i.modifiers != ("b32",):
        raise UnsupportedPtxError("a prmt mode", i)
    e.write(target, e.call("i32", "k.prmt", *(f"i32 {e.read(operand, 'i32')}" for operand in (a, b, c))), "i32")


def dot_product(e: Emitter, i: Instruction) -> None:
    """Translate `dp4a`, four products of bytes plus c, and `dp2a`, two products of 16-bit by 8-bit."""
    target, a, b, c = i.operands
    kinds = i.types()
    total = e.read(c, "i32")
    n_products, width = (4, 8) if i.opcode == "dp4a" else (2, 16)
    first = 2 if i.opcode == "dp2a" and i.has("hi") else 0
    for index in range(n_products):
        left = _part(e, e.read(a, "i32"), index * width, width, kinds[0])
        right = _part(e, e.read(b, "i32"), (first + index) * 8, 8, kinds[1])
        total = e.op(f"add i32 {total}, {e.op(f'mul i32 {left}, {right}')}")
    e.write(target, total, "i32")


def sum_of_differences(e: Emitter, i: Instruction) -> None:
    """Translate `sad`: |a - b| + c."""
    kind = i.types()[-1]
    width = llvm_type(kind)
    target, a, b, c = i.operands
    left, right = e.read(a, width), e.read(b, width)
    is_less = e.op(f"icmp {'slt' if kind[0] == 's' else 'ult'} {width} {left}, {right}")
    forward, backward = e.op(f"sub {width} {left}, {right}"), e.op(f"sub {width} {right}, {left}")
    difference = e.op(f"select i1 {is_less}, {width} {backward}, {width} {forward}")
    e.write(target, e.op(f"add {width} {difference}, {e.read(c, width)}"), width)


HANDLERS: dict[str, Handler] = {
    "mov": move,
    "cvta": address_conversion,
    "isspacep": is_space,
    "addc": add_with_carry,
    "subc": add_with_carry,
    "mad": multiply_add,
    "madc": multiply_add,
    "rem": divide_or_remainder,
    "and": logic,
    "or": logic,
    "xor": logic,
    "not": logical_not,
    "cnot": logical_not,
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "lop3": lookup_logic,
    "bfe": extract_bits,
    "bfi": insert_bits,
    "bfind": find_first_bit,
    "bmsk": make_mask,
    "popc": count_bits,
    "clz": count_bits,
    "brev": reverse_bits,
    "prmt": permute_bytes,
    "dp4a": dot_product,
    "dp2a": dot_product,
    "sad": sum_of_differences,
}
INTEGER_FORMS: dict[str, Handler] = {
    "add": add_or_subtract,
    "sub": add_or_subtract,
    "mul": multiply,
    "div": divide_or_remainder,
    "abs": absolute,
    "neg": negate,
    "min": minimum_or_maximum,
    "max": minimum_or_maximum,
}
"""Integer handlers of the opcodes that floats share."""


_N_BUFFER_WINDOWS = FIRST_CLUSTER_WINDOW - FIRST_BUFFER_WINDOW


def _window_of(i: Instruction) -> int:
    if i.has("shared", "shared__cta", "shared__cluster"):
        return window_base(SHARED_WINDOW)
    return window_base(2) if i.has("local") else 0


def _extreme(e: Emitter, i: Instruction, width: str, left: str, right: str) -> str:
    sign = "s" if i.types()[-1][0] == "s" else "u"
    value = e.call(width, f"llvm.{sign}{i.opcode}.{width}", f"{width} {left}", f"{width} {right}")
    return e.call(width, f"llvm.smax.{width}", f"{width} {value}", f"{width} 0") if i.has("relu") else value


def _halves(e: Emitter, value: str) -> tuple[str, str]:
    shifted = e.op(f"lshr i32 {value}, 16")
    return e.op(f"trunc i32 {value} to i16"), e.op(f"trunc i32 {shifted} to i16")


def _bit_field(e: Emitter, operand: Operand) -> str:
    """Return a bit position or length: the low eight bits."""
    value = e.read(operand, "i32")
    return f"i32 {e.op(f'and i32 {value}, 255')}"


def _with_carry(e: Emitter, name: str, width: str, left: str, right: str) -> str:
    both = e.op(f"call {{{width}, i1}} @llvm.u{name}.with.overflow.{width}({width} {left}, {width} {right})")
    e.write(Register(CARRY), e.op(f"extractvalue {{{width}, i1}} {both}, 1"), "i1")
    return e.op(f"extractvalue {{{width}, i1}} {both}, 0")


def _part(e: Emitter, value: str, start: int, width: int, kind: str) -> str:
    up = e.op(f"shl i32 {value}, {32 - width - start}")
    return e.op(f"{'ashr' if kind[0] == 's' else 'lshr'} i32 {up}, {32 - width}")
