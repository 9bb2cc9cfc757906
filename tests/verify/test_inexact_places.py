"""A place that is computed in single precision, or by half a product, is told from data that is converted."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.probes.sums import has_inexact_places

PLACE = ("mov.u32 %r1, %ctaid.x", "mov.u32 %r2, %tid.x", "mad.lo.s32 %r3, %r1, 256, %r2", "cvt.rn.f32.s32 %f1, %r3")


@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ((*PLACE, "div.rn.f32 %f2, %f1, %f9", "cvt.rzi.s32.f32 %r4, %f2"), True),
        ((*PLACE, "st.global.f32 [%rd1], %f1"), False),
        (("ld.global.f32 %f1, [%rd1]", "mul.f32 %f2, %f1, 0f42FE0000", "cvt.rni.s32.f32 %r4, %f2"), False),
        (("ld.global.b32 %r3, [%rd1]", "cvt.rn.f32.s32 %f1, %r3", "cvt.rzi.s32.f32 %r4, %f1"), False),
        ((*PLACE[:3], "rem.s32 %r4, %r3, %r9", "cvt.rn.f32.s32 %f1, %r4", "cvt.rmi.s32.f32 %r5, %f1"), False),
        ((*PLACE, "ld.param.b32 %r5, [k_param_2]", "mul.hi.u32 %r6, %r3, %r5"), True),
        ((*PLACE, "mul.hi.u32 %r6, %r3, -858993459"), False),
        (("ld.global.b32 %r3, [%rd1]", "ld.param.b32 %r5, [k_param_2]", "mul.hi.u32 %r6, %r3, %r5"), False),
    ],
    ids=[
        *("index", "a number of the place", "quantized data", "an integer of the data", "a coordinate"),
        *("half a product", "a division by a constant", "a product of data"),
    ],
)
def test_inexact_places_are_found(lines: tuple[str, ...], is_found: bool) -> None:
    body = "\n".join(f"    {line};" for line in lines)
    assert has_inexact_places(read_ptx(f".visible .entry k()\n{{\n{body}\n}}\n")) is is_found
