"""Products with quantized weights: bytes converted in fragments, bytes by bytes, and factors computed in packs."""

from __future__ import annotations

import pytest

from tests.generate import harness
from tests.generate.harness import plan_text, tensor
from tests.generate.test_tensor_cores import check

LINEAR = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, ({n}, {k}), dtype=torch.int8))
        self.register_buffer("scale", torch.rand({shape}).to({dtype}))
    def forward(self, x): return {body}
"""
AFTER = "F.linear(x, self.weight.to(x.dtype)) * self.scale"
BEFORE = "F.linear(x, self.weight.to(x.dtype) * self.scale[:, None])"
GROUPS = "F.linear(x, (self.weight.view({n}, -1, 64).to(x.dtype) * self.scale[:, :, None]).view({n}, {k}))"
BY_BYTES = "(torch._int_mm(x, self.weight.t()) * self.scale).to(torch.bfloat16)"


def linear(body: str, n: int, k: int, dtype: str = "torch.bfloat16", shape: str = "") -> str:
    """Return a module with int8 weights (n, k) and scales of a shape, one per row unless said."""
    return LINEAR.format(n=n, k=k, dtype=dtype, shape=shape or n, body=body.format(n=n, k=k))


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("body", [AFTER, BEFORE], ids=["after", "before"])
def test_bytes_are_converted_in_fragments(body: str, rows: int) -> None:
    checked = harness.check(linear(body, 72, 128), symbol="M", inputs=[tensor("x", rows, 128, dtype="bf16")])
    assert "reinterpret_cast<signed char (*)[TN][TK + 16]>" in checked.text
    assert checked.text.count("__global__") == 1


def test_scales_of_groups_are_read_for_pairs_of_products() -> None:
    text = linear(GROUPS, 64, 128, "torch.float16", "64, 2")
    checked = harness.check(text, symbol="M", inputs=[tensor("x", 5, 128, dtype="f16")])
    assert "reinterpret_cast<signed char (*)[TN][TK + 16]>" in checked.text


def test_terms_that_fit_no_step_have_another_way() -> None:
    checked = harness.check(linear(AFTER, 40, 72), symbol="M", inputs=[tensor("x", 9, 72, dtype="bf16")])
    assert "signed char (*)" not in checked.text


@pytest.mark.parametrize("cluster", [1, 2])
def test_bytes_are_multiplied_by_bytes(cluster: int) -> None:
    checked = check(
        linear(BY_BYTES, 40, 264, "torch.float32"),
        [tensor("x", 33, 264, dtype="i8")],
        symbol="M",
        knobs={"cluster": cluster, "tile_m": 32, "tile_n": 32, "warps_m": 2, "warps_n": 2, "tile_k": 32},
    )
    assert "multiply_i8(sums[i][j], bits, right[j])" in checked.text


def test_bytes_beside_each_other_along_rows_alone_stay_on_cuda_cores() -> None:
    text = "def f(a, b): return torch._int_mm(a, b)"
    program = plan_text(text, inputs=[tensor("a", 32, 64, dtype="i8"), tensor("b", 64, 32, dtype="i8")])
    assert not any("tensor_cores" in knob.values for knob in program.knobs)


@pytest.mark.parametrize(("own", "given"), [("float32", "bf16"), ("bfloat16", "f32"), ("int8", "f16")])
@pytest.mark.parametrize("call", ["x @ self.w.to(x.dtype)", "x @ self.w.to(x.dtype).t()"])
def test_computed_factors_are_read_in_packs(call: str, own: str, given: str) -> None:
    text = f"""
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.randint(-8, 9, (72, 72)).to(torch.{own}))
    def forward(self, x): return {call}
"""
    checked = check(text, [tensor("x", 40, 72, dtype=given)], symbol="M")
    assert "w_pack.item[" in checked.text
    assert "__align__(16)" in checked.text


def test_products_of_few_terms_in_16_bits_are_on_tensor_cores() -> None:
    inputs = [tensor("x", 4096, 16, dtype="bf16"), tensor("a", 16, 1024, dtype="bf16")]
    program = plan_text("def f(x, a): return F.relu(x @ a)", inputs=inputs)
    ways = {knob.name: knob.default for knob in program.knobs if knob.name.endswith(".contraction")}
    assert ways == {"f.mm.contraction": "tensor_cores"}
