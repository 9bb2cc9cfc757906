"""`mma.sync`, `ldmatrix`, `stmatrix` and `movmatrix` hold matrices as the PTX ISA says, element by element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kernel_lsp.ptx.executor_process import Session
from tests.ptx.harness import Executor

LANES = np.arange(32)[:, None]
G, T = LANES // 4, LANES % 4
"""The ISA's groupID and threadID_in_group."""
HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"
RNG = np.random.default_rng(11)


@dataclass(frozen=True)
class Layout:
    """Row and column of element i of each lane, as arrays of 32 x n, straight from the ISA."""

    rows: np.ndarray
    columns: np.ndarray


def layout(n_elements, row, column) -> Layout:
    i = np.arange(n_elements)[None, :]
    shape = (32, n_elements)
    return Layout(np.broadcast_to(row(i), shape), np.broadcast_to(column(i), shape))


ACCUMULATOR = layout(4, lambda i: np.where(i < 2, G, G + 8), lambda i: T * 2 + (i & 1))
SMALL_ACCUMULATOR = layout(2, lambda i: G + 0 * i, lambda i: T * 2 + (i & 1))
LAYOUTS = {
    ("16", "m16n8k8"): (
        layout(4, lambda i: np.where(i < 2, G, G + 8), lambda i: T * 2 + (i & 1)),
        layout(2, lambda i: T * 2 + i, lambda i: G + 0 * i),
    ),
    ("16", "m16n8k16"): (
        layout(8, lambda i: np.where((i // 2) % 2 == 0, G, G + 8), lambda i: T * 2 + (i & 1) + np.where(i >= 4, 8, 0)),
        layout(4, lambda i: T * 2 + (i & 1) + np.where(i >= 2, 8, 0), lambda i: G + 0 * i),
    ),
    ("tf32", "m16n8k4"): (
        layout(2, lambda i: np.where(i == 0, G, G + 8), lambda i: T + 0 * i),
        layout(1, lambda i: T + 0 * i, lambda i: G + 0 * i),
    ),
    ("tf32", "m16n8k8"): (
        layout(4, lambda i: np.where(i % 2 == 0, G, G + 8), lambda i: np.where(i < 2, T, T + 4)),
        layout(2, lambda i: np.where(i == 0, T, T + 4), lambda i: G + 0 * i),
    ),
    ("f64", "m8n8k4"): (
        layout(1, lambda i: G + 0 * i, lambda i: T + 0 * i),
        layout(1, lambda i: T + 0 * i, lambda i: G + 0 * i),
    ),
    ("f64", "m16n8k4"): (
        layout(2, lambda i: np.where(i == 0, G, G + 8), lambda i: T + 0 * i),
        layout(1, lambda i: T + 0 * i, lambda i: G + 0 * i),
    ),
    ("f64", "m16n8k8"): (
        layout(4, lambda i: np.where(i % 2 == 0, G, G + 8), lambda i: np.where(i < 2, T, T + 4)),
        layout(2, lambda i: np.where(i == 0, T, T + 4), lambda i: G + 0 * i),
    ),
    ("f64", "m16n8k16"): (
        layout(8, lambda i: np.where(i % 2 == 0, G, G + 8), lambda i: i // 2 * 4 + T),
        layout(4, lambda i: T + 4 * i, lambda i: G + 0 * i),
    ),
    ("8", "m8n8k16"): (
        layout(4, lambda i: G + 0 * i, lambda i: T * 4 + i),
        layout(4, lambda i: T * 4 + i, lambda i: G + 0 * i),
    ),
    ("8", "m16n8k16"): (
        layout(8, lambda i: np.where(i < 4, G, G + 8), lambda i: T * 4 + (i & 3)),
        layout(4, lambda i: T * 4 + i, lambda i: G + 0 * i),
    ),
    ("8", "m16n8k32"): (
        layout(
            16, lambda i: np.where((i // 4) % 2 == 0, G, G + 8), lambda i: T * 4 + (i & 3) + np.where(i >= 8, 16, 0)
        ),
        layout(8, lambda i: T * 4 + (i & 3) + np.where(i >= 4, 16, 0), lambda i: G + 0 * i),
    ),
}
CASES = [
    ("m16n8k8", "f32", "f16", "f16", "f32"),
    ("m16n8k8", "f16", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "bf16", "bf16", "f32"),
    ("m16n8k16", "f32", "f16", "f16", "f32"),
    ("m16n8k16", "f16", "f16", "f16", "f16"),
    ("m16n8k16", "f32", "bf16", "bf16", "f32"),
    ("m16n8k4", "f32", "tf32", "tf32", "f32"),
    ("m16n8k8", "f32", "tf32", "tf32", "f32"),
    ("m8n8k4", "f64", "f64", "f64", "f64"),
    ("m16n8k4", "f64", "f64", "f64", "f64"),
    ("m16n8k8", "f64", "f64", "f64", "f64"),
    ("m16n8k16", "f64", "f64", "f64", "f64"),
    ("m8n8k16", "s32", "s8", "s8", "s32"),
    ("m16n8k16", "s32", "s8", "u8", "s32"),
    ("m16n8k32", "s32", "u8", "s8", "s32"),
    ("m16n8k32", "s32", "u8", "u8", "s32"),
]
NUMPY = {"f16": "f2", "tf32": "f4", "f32": "f4", "f64": "f8", "s8": "i1", "u8": "u1", "s32": "i4"}
FAMILY = {"f16": "16", "bf16": "16", "tf32": "tf32", "f64": "f64", "s8": "8", "u8": "8"}


def sizes(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def layouts(shape: str, kind: str) -> tuple[Layout, Layout, Layout]:
    a, b = LAYOUTS[FAMILY[kind], shape]
    return a, b, SMALL_ACCUMULATOR if shape.startswith("m8") else ACCUMULATOR


def drawn(kind: str, n_rows: int, n_columns: int) -> np.ndarray:
    """Random values that the type holds, as f64."""
    if kind in ("s8", "u8", "s32"):
        low, high = {"s8": (-128, 128), "u8": (0, 256), "s32": (-1000, 1000)}[kind]
        return RNG.integers(low, high, (n_rows, n_columns)).astype("f8")
    values = RNG.standard_normal((n_rows, n_columns))
    if kind in ("bf16", "tf32"):
        return (values.astype("f4").view("u4") & np.uint32(0xFFFF0000)).view("f4").astype("f8")
    return values.astype(NUMPY[kind]).astype("f8")


def encoded(kind: str, values: np.ndarray) -> np.ndarray:
    """A lane's elements as the words of its registers."""
    bits = (values.astype("f4").view("u4") >> 16).astype("u2") if kind == "bf16" else values.astype(NUMPY[kind])
    return np.ascontiguousarray(bits).view("u8" if kind == "f64" else "u4")


def decoded(kind: str, words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words).view(NUMPY[kind]).astype("f8")


def n_words(kind: str, held: Layout) -> int:
    return (
        held.rows.shape[1]
        * {"16": 2, "tf32": 4, "f64": 8, "8": 1, "32": 4}[FAMILY.get(kind, "32")]
        // (8 if kind == "f64" else 4)
    )


def registers(letter: str, count: int) -> str:
    return "{" + ", ".join(f"%{letter}{index}" for index in range(count)) + "}"


def mma_kernel(name: str, case: tuple[str, ...], suffix: str = "") -> str:
    """Loads the registers of each lane, multiplies, stores them."""
    shape, d_kind, a_kind, b_kind, c_kind = case
    held = layouts(shape, a_kind)
    counts = [n_words(kind, one) for kind, one in zip((a_kind, b_kind, c_kind), held, strict=True)]
    n_result = n_words(d_kind, held[2])
    width = 8 if a_kind == "f64" else 4
    register = {"f64": "f64"}.get(a_kind, "b32")
    result = "f64" if a_kind == "f64" else "f32" if d_kind == "f32" else "b32"
    lines = [f".visible .entry {name}(.param .u64 A, .param .u64 B, .param .u64 C, .param .u64 D) {{"]
    lines += [".reg .b32 %lane;", ".reg .b64 %p<5>;", ".reg .b64 %o;"]
    for letter, count, kind in zip("abcd", (*counts, n_result), (register, register, result, result), strict=True):
        lines.append(f".reg .{kind} %{letter}<{count + 1}>;")
    lines.append("mov.u32 %lane, %tid.x;")
    for index, (letter, count) in enumerate(zip("ABCD", (*counts, n_result), strict=True)):
        lines.append(f"ld.param.u64 %p{index}, [{letter}];")
        lines.append(f"mul.wide.u32 %o, %lane, {count * width};")
        lines.append(f"add.u64 %p{index}, %p{index}, %o;")
    for index, (letter, count, kind) in enumerate(zip("abc", counts, (register, register, result), strict=True)):
        for number in range(count):
            lines.append(f"ld.global.{kind} %{letter}{number}, [%p{index}+{number * width}];")
    operands = ", ".join(registers(letter, count) for letter, count in zip("dabc", (n_result, *counts), strict=True))
    lines.append(f"mma.sync.aligned.{shape}.row.col{suffix}.{d_kind}.{a_kind}.{b_kind}.{c_kind} {operands};")
    for number in range(n_result):
        lines.append(f"st.global.{result} [%p3+{number * width}], %d{number};")
    return "\n".join([*lines, "ret;", "}"])


def row_kernel(opcode: str, count: int, trans: str) -> str:
    """`ldmatrix` from, or `stmatrix` to, 32 rows of shared memory; lane l points at row (5 l) mod 32."""
    name = f"{opcode}_{count}{trans.replace('.', '_')}"
    values = registers("r", count)
    instruction = f"{opcode}.sync.aligned.m8n8.x{count}{trans}.shared.b16"
    into, out = f"{instruction} {values}, [%row];", f"{instruction} [%row], {values};"
    move_in = "".join(f"ld.global.b32 %r{j}, [%own+{4 * j}];\n" for j in range(count))
    move_out = "".join(f"st.global.b32 [%own+{4 * j}], %r{j};\n" for j in range(count))
    fill = "ld.global.v4.b32 {%w0, %w1, %w2, %w3}, [%line];\nst.shared.v4.b32 [%mine], {%w0, %w1, %w2, %w3};\n"
    drain = "ld.shared.v4.b32 {%w0, %w1, %w2, %w3}, [%mine];\nst.global.v4.b32 [%line], {%w0, %w1, %w2, %w3};\n"
    body = (
        f"{fill}bar.warp.sync -1;\n{into}\n{move_out}"
        if opcode == "ldmatrix"
        else (f"{fill}{move_in}bar.warp.sync -1;\n{out}\nbar.warp.sync -1;\n{drain}")
    )
    return f"""
.visible .entry {name}(.param .u64 M, .param .u64 R) {{
.reg .b32 %lane, %other, %row, %mine, %w<4>, %r<5>;
.reg .b64 %line, %own, %o;
.shared .align 16 .b8 rows_{name}[512];
mov.u32 %lane, %tid.x;
ld.param.u64 %line, [M];
mul.wide.u32 %o, %lane, 16;
add.u64 %line, %line, %o;
ld.param.u64 %own, [R];
mul.wide.u32 %o, %lane, {4 * count};
add.u64 %own, %own, %o;
mov.u32 %mine, rows_{name};
mul.lo.u32 %other, %lane, 5;
and.b32 %other, %other, 31;
mad.lo.u32 %row, %other, 16, %mine;
mad.lo.u32 %mine, %lane, 16, %mine;
{body}
ret;
}}"""


MOVE = """
.visible .entry move(.param .u64 I, .param .u64 O) {
.reg .b32 %lane, %a, %d;
.reg .b64 %in, %out, %o;
mov.u32 %lane, %tid.x;
mul.wide.u32 %o, %lane, 4;
ld.param.u64 %in, [I];
ld.param.u64 %out, [O];
add.u64 %in, %in, %o;
add.u64 %out, %out, %o;
ld.global.b32 %a, [%in];
movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;
st.global.b32 [%out], %d;
ret;
}"""
ROW_CASES = [(opcode, n, t) for opcode in ("ldmatrix", "stmatrix") for n in (1, 2, 4) for t in ("", ".trans")]


@pytest.fixture(scope="module")
def executor(session, tmp_path_factory) -> Executor:
    """One module with a kernel per case: compiling it is what takes the time."""
    kernels = [mma_kernel(f"mma{index}", case) for index, case in enumerate(CASES)]
    kernels.append(mma_kernel("clamped", CASES[12], ".satfinite"))
    kernels += [row_kernel(*case) for case in ROW_CASES]
    text = HEAD + "\n".join([*kernels, MOVE])
    return Executor(Session(session.compiler), text, tmp_path_factory.mktemp("matrices"), {})


def product(executor, name, case, a, b, c) -> np.ndarray:
    """d of one warp, from matrices in f64."""
    shape, d_kind, a_kind, b_kind, c_kind = case
    held = layouts(shape, a_kind)
    words = {
        letter: encoded(kind, matrix[one.rows, one.columns])
        for letter, kind, matrix, one in zip("abc", (a_kind, b_kind, c_kind), (a, b, c), held, strict=True)
    }
    out = np.zeros((32, n_words(d_kind, held[2])), "u8" if d_kind == "f64" else "u4")
    ran = executor.run(name, inputs=words, outputs={"d": out})
    assert ran.findings == []
    result = np.full((sizes(shape)[0], sizes(shape)[1]), np.nan)
    result[held[2].rows, held[2].columns] = decoded(d_kind, ran.arrays["d"])
    return result


@pytest.mark.parametrize("index", range(len(CASES)), ids=["-".join(case) for case in CASES])
def test_a_product_is_that_of_the_matrices(executor, index):
    shape, d_kind, a_kind, b_kind, c_kind = case = CASES[index]
    m, n, k = sizes(shape)
    a, b, c = drawn(a_kind, m, k), drawn(b_kind, k, n), drawn(c_kind, m, n)
    found, exact = product(executor, f"mma{index}", case, a, b, c), a @ b + c
    budget = {"s32": 0.0, "f64": 2e-15, "f32": 2.0**-23, "f16": 2.0**-11}[d_kind] * (abs(a) @ abs(b) + abs(c))
    assert (abs(found - exact) <= budget * (k + 1 if d_kind == "f32" else 1)).all()


def test_sums_of_integers_clamp_where_they_are_asked_to(executor):
    case = CASES[12]
    a, b = np.full((8, 16), 127.0), np.full((16, 8), 127.0)
    high, low = np.full((8, 8), 2.0**31 - 10), np.full((8, 8), -(2.0**31) + 10)
    assert (product(executor, "clamped", case, a, b, high) == 2**31 - 1).all()
    assert (product(executor, "clamped", case, a, -b, low) == -(2**31)).all()
    assert (product(executor, "mma12", case, a, b, high) == 2**31 - 10 + 16 * 127 * 127 - 2**32).all()


def test_the_low_bits_of_a_tf32_factor_are_cut_off(executor):
    case = CASES[7]
    values = np.float32(1.0 + RNG.random((16, 8)))
    cut = (values.view("u4") & np.uint32(0xFFFFE000)).view("f4").astype("f8")
    unit, zero = np.eye(8), np.zeros((16, 8))
    assert (product(executor, "mma7", case, values.astype("f8"), unit, zero) == cut).all()


@pytest.mark.parametrize(("count", "trans"), [(n, t) for n in (1, 2, 4) for t in ("", ".trans")])
def test_rows_are_handed_to_the_lanes(executor, count, trans):
    rows = np.arange(256, dtype="u2").reshape(32, 8)
    name = f"ldmatrix_{count}{trans.replace('.', '_')}"
    found = executor.run(name, inputs={"m": rows}, outputs={"r": np.zeros((32, 2 * count), "u2")})
    assert found.findings == []
    pointed = rows[np.arange(32) * 5 % 32]
    for j in range(count):
        matrix = pointed[8 * j : 8 * j + 8]
        matrix = matrix.T if trans else matrix
        pair = np.arange(2)[None, :]
        assert (found.arrays["r"][:, 2 * j : 2 * j + 2] == matrix[G, 2 * T + pair]).all()


@pytest.mark.parametrize(("count", "trans"), [(n, t) for n in (1, 2, 4) for t in ("", ".trans")])
def test_lanes_store_rows(executor, count, trans):
    before, held = np.zeros((32, 8), "u2"), np.arange(1, 64 * count + 1, dtype="u2").reshape(32, 2 * count)
    name = f"stmatrix_{count}{trans.replace('.', '_')}"
    ran = executor.run(name, outputs={"m": before}, inputs={"r": held}, arguments=("m", "r"), fills={"m": 0})
    assert ran.findings == []
    expected = before.copy()
    for j in range(count):
        matrix = np.zeros((8, 8), "u2")
        matrix[G, 2 * T + np.arange(2)[None, :]] = held[:, 2 * j : 2 * j + 2]
        expected[np.arange(8 * j, 8 * j + 8) * 5 % 32] = matrix.T if trans else matrix
    assert (ran.arrays["m"] == expected).all()


def test_a_matrix_is_transposed_in_registers(executor):
    matrix = np.arange(64, dtype="u2").reshape(8, 8)
    pair = np.arange(2)[None, :]
    ran = executor.run("move", inputs={"i": matrix[G, 2 * T + pair]}, outputs={"o": np.zeros((32, 2), "u2")})
    assert (ran.arrays["o"] == matrix.T[G, 2 * T + pair]).all()


@pytest.mark.parametrize(
    "instruction",
    [
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f0}, {%a0}, {%a1}, {%f1};",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0}, {%a0}, {%a1}, {%f1};",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%a0}, {%a1}, {%f1}, %a0, 0;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f0}, {%a0}, {%a1}, {%f1};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%a0}, {%a1}, {%f1};",
        "ldmatrix.sync.aligned.m8n8.x1.b16 {%a0}, [%p0];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 {%a0}, [%a1];",
        "wmma.load.a.sync.aligned.row.m8n8k32.s4 {%a0}, [%p0];",
        "wgmma.mma_async.sp.sync.aligned.m64n8k16.f32.tf32.tf32 {%f0, %f1, %f2, %f3}, %p0, %p1, %a0, 0, %a1, 1, 1;",
    ],
)
def test_what_is_not_known_is_unsupported_with_its_text(ptx, instruction):
    loaded = ptx(
        f"{HEAD}.visible .entry k() {{ .reg .b32 %a<4>; .reg .f32 %f<4>; .reg .b64 %p<2>; {instruction} ret; }}"
    ).loaded
    assert loaded["unsupported"]["instruction"] == instruction.removesuffix(";")
