"""Attention: found in graphs however it is written, and computed by one kernel with an online softmax."""

from __future__ import annotations

import pytest

from tests.generate.harness import Checked, check, plan_text, tensor

SDPA = "F.scaled_dot_product_attention(q, k, v{})"
WRITTEN = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tril(torch.ones(48, 48)).view(1, 1, 48, 48))
    def forward(self, qkv):
        B, T, _ = qkv.size()
        q, k, v = (part.view(B, T, 2, 32).transpose(1, 2) for part in qkv.split(64, dim=2))
        scores = (q @ k.transpose(-2, -1)) * k.size(-1) ** -0.5
        scores = scores.masked_fill(self.seen[:, :, :T, :T] == 0, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(B, T, 64)
"""


WINDOWS = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 2, bias=False))
        self.register_buffer("table", torch.rand(25, 2)); self.register_buffer("place", torch.randint(0, 25, (9, 9)))
        self.register_buffer("mask", (torch.rand(3, 9, 9) > 0.7).float() * -100)
    def forward(self, x):
        q, k, v = x.view(-1, 9, 3, 2, 16).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * 10
        scores = scores + 16 * torch.sigmoid(self.bias(self.table)[self.place.view(-1)].view(9, 9, 2).permute(2, 0, 1))
        scores = (scores.view(-1, 3, 2, 9, 9) + self.mask.unsqueeze(1)).view(-1, 2, 9, 9)
        return scores.softmax(-1) @ v
"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_causal_attention_is_one_kernel(dtype: str) -> None:
    checked = check_sdpa(", is_causal=True", dtype=dtype, n_queries=70, n_keys=70)
    assert "min(int(" in checked.text, "keys behind the last query of a block are not looked at"


@pytest.mark.parametrize("mask", ["bool", "f32"])
def test_masks_are_applied_where_scores_are_made(mask: str) -> None:
    check_sdpa(", attn_mask=m", mask=mask)


def test_queries_share_keys_and_values_of_a_group() -> None:
    inputs = [tensor("q", 2, 4, 40, 16), tensor("k", 2, 2, 40, 16), tensor("v", 2, 2, 40, 16)]
    assert check(f"def f(q, k, v): return {SDPA.format(', enable_gqa=True')}", inputs=inputs).n_kernels == 1


def test_gradients_of_shared_keys_and_values_are_summed_over_their_group() -> None:
    check_gradients(", is_causal=True, enable_gqa=True", n_heads=2)


def test_gradients_of_16_bits_recompute_scores() -> None:
    check_gradients(", is_causal=True", dtype="bf16")


def test_attention_written_by_hand_is_one_kernel_with_its_permutations() -> None:
    checked = check(WRITTEN, symbol="M", inputs=[tensor("qkv", 2, 40, 192)])
    assert checked.n_kernels == 1
    assert "scratch:" not in checked.text


def test_attention_of_windows_whose_bias_is_a_product_has_no_score_in_memory() -> None:
    """Check the attention of Swin Transformer V2, in which a small network makes the bias of each pair of places."""
    checked = check(WINDOWS, symbol="M", inputs=[tensor("x", 6, 9, 96)])
    assert "online" in [knob.default for knob in checked.program.knobs if knob.name.endswith(".attention")]
    assert not any(", 2, 9, 9]" in line for line in checked.text.splitlines() if line.startswith("// scratch:"))


@pytest.mark.parametrize(("n_queries", "by_groups"), [(49, False), (64, True), (150, True), (130, True)])
def test_few_queries_take_tiles_that_they_fill(n_queries: int, by_groups: bool) -> None:
    inputs = [tensor(name, 64, 8, n_queries, 32) for name in "qkv"]
    assert ("wgmma" in plan_text(f"def f(q, k, v): return {SDPA.format('')}", inputs=inputs).render({})) == by_groups


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_of_scores_over_a_root_recompute_scores(dtype: str) -> None:
    text = """
def f(q, k, v):
    i = torch.arange(q.shape[2])
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + (i[None, :] - i[:, None]).to(q.dtype)
    return scores.masked_fill(i[None, :] > i[:, None], float("-inf")).softmax(-1) @ v
"""
    inputs = [tensor(name, 1, 2, 40, 32, dtype=dtype) for name in "qkv"]
    checked = check(text, inputs=inputs, backward=True)
    assert checked.text.count("_backward_statistics<<<") == 1
    assert ", H, H]" not in checked.text, "no score is in memory"


def test_gradients_of_attention_written_by_hand_recompute_scores() -> None:
    text = plan_text(WRITTEN, symbol="M", inputs=[tensor("qkv", 2, 40, 192)], backward=True).render({})
    assert "scratch: statistics: f32[B, 2, T, 2]" in text
    assert "T, T]" not in text, "no score is in memory"


MASKED = """
def f(q, k, v, seen):
    i = torch.arange(q.shape[2])
    scores = q @ k.transpose(-1, -2) / 8.0
    return scores.masked_fill({hidden}, float("-inf")).softmax(-1) @ v
"""


@pytest.mark.parametrize("family", ["special_nan", "large", "far_negative"])
@pytest.mark.parametrize("hidden", ["i[None, :] > i[:, None]", "~(seen | (i[None, :] == i[:, None]))"])
@pytest.mark.parametrize(("dtype", "by_groups"), [("f32", 0), ("f32", 1), ("bf16", 0)])
def test_gradients_of_hidden_scores_are_zero_beside_a_nan(dtype: str, by_groups: int, hidden: str, family: str) -> None:
    text = MASKED.format(hidden=hidden)
    inputs = [*(tensor(name, 1, 2, 40, 32, dtype=dtype) for name in "qkv"), tensor("seen", 40, 40, dtype="bool")]
    schedule = {"statistics.warpgroups": by_groups} if dtype == "f32" else {}
    checked = check(text, inputs=inputs, backward=True, families=(family,), schedule=schedule)
    assert "isnan(gradients[n][c])" in checked.text


@pytest.mark.parametrize(("dtype", "way"), [("f32", "products"), ("bf16", "online")])
def test_gradients_of_large_scores_in_f32_are_products_by_default(dtype: str, way: str) -> None:
    text = "def f(q, k, v): return (q @ k.transpose(-1, -2) / 11.0).softmax(-1) @ v"
    inputs = [tensor(name, 1, 8, 1024, 128, dtype=dtype) for name in "qkv"]
    program = plan_text(text, inputs=inputs, backward=True)
    (knob,) = [knob for knob in program.knobs if knob.name == "f_backward.bmm.attention"]
    assert knob.default == way


@pytest.mark.parametrize("backward", [False, True])
def test_a_softmax_over_a_sink_beside_the_keys_is_no_attention_without_it(backward: bool) -> None:
    text = """
        def f(q, k, v, sink):
            scores = torch.cat([q @ k.transpose(-2, -1), sink.expand(2, 24, 1)], -1)
            return scores.softmax(-1)[..., :-1] @ v
    """
    inputs = [tensor("q", 2, 24, 16), tensor("k", 2, 24, 16), tensor("v", 2, 24, 16), tensor("sink", 1)]
    check(text, inputs=inputs, backward=backward)


@pytest.mark.parametrize("family", ["special_nan", "large", "constant_rows", "far_negative"])
def test_attention_of_hard_inputs(family: str) -> None:
    check_sdpa("", families=(family,))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_scores_whose_product_with_a_constant_rounds_by_more_than_one_have_weights(dtype: str) -> None:
    check_sdpa(", is_causal=True", dtype=dtype, families=("lowest_rows",))


@pytest.mark.parametrize(("warps", "keys"), [(2, 16), (8, 32)])
def test_tiles_of_other_sizes(warps: int, keys: int) -> None:
    schedule = {"f.warps": warps, "f.keys": keys, "f.resident": 2}
    checked = check_sdpa(", is_causal=True", n_queries=40, n_keys=40, schedule=schedule)
    assert f"__launch_bounds__({warps * 32}, 2)" in checked.text


def test_attention_by_the_library_is_one_call() -> None:
    text = f"def f(q, k, v): return {SDPA.format(', is_causal=True')}"
    checked = check(text, inputs=operands("bf16", 9, 9), schedule={"f.bmm.attention": "library"})
    assert "library: sdpa::forward(q, k, v, true, 0.1767766" in checked.text
    assert checked.n_kernels == 0


@pytest.mark.parametrize("arguments", [", is_causal=True, enable_gqa=True", ", enable_gqa=True"])
def test_grouped_attention_and_its_gradients_by_the_library_are_two_calls(arguments: str) -> None:
    inputs = [tensor("q", 2, 4, 20, 16, dtype="bf16"), *(tensor(name, 2, 2, 20, 16, dtype="bf16") for name in "kv")]
    schedule = {"f.keeps": 0, "f.bmm.attention": "library", "f_backward.grad_query.attention": "library"}
    text = f"def f(q, k, v): return {SDPA.format(arguments)}"
    checked = check(text, inputs=inputs, backward=True, schedule=schedule)
    assert "library: sdpa::backward(q, k, v, grad_out, " in checked.text
    assert "library: sdpa::forward(q, k, v, " in checked.text
    assert "__global__" not in checked.text


@pytest.mark.parametrize(("dtype", "way"), [("f32", "online"), ("bf16", "online"), ("bf16", "library")])
def test_a_forward_keeps_the_logarithms_of_its_sums(dtype: str, way: str) -> None:
    inputs = [tensor("q", 2, 4, 20, 32, dtype=dtype), *(tensor(name, 2, 2, 20, 32, dtype=dtype) for name in "kv")]
    text = f"def f(q, k, v): return {SDPA.format(', is_causal=True, enable_gqa=True')}"
    families = ("normal", "large") if dtype == "f32" else ("normal",)
    checked = check(text, inputs=inputs, backward=True, schedule={"log_sums.attention": way}, families=families)
    assert "// keeps: log_sums: f32[" in checked.text
    assert ("sdpa::backward_kept(q, k, v, grad_out, out, log_sums, " in checked.text) == (way == "library")
    assert checked.plan.backward is not None
    assert [tensor.name for tensor in checked.plan.backward.scratch] == ["row_products"] * (way == "online")


def test_gradients_of_large_attention_are_the_librarys_by_default_unless_masked() -> None:
    inputs = [tensor(name, 4, 32, 512, 128, dtype="bf16") for name in "qkv"]
    assert "sdpa::backward_kept" in rendered(", is_causal=True", inputs)
    assert "sdpa" not in rendered(", attn_mask=m", [*inputs, tensor("m", 512, 512, dtype="bool")])


def test_a_softmax_that_is_returned_is_computed_by_products() -> None:
    text = """
    def f(q, k, v):
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return weights @ v, weights
    """
    assert check(text, inputs=operands("f32", 9, 9)).n_kernels > 1


# --- below: one call


def check_gradients(arguments: str, *, dtype: str = "f32", n_heads: int = 4) -> None:
    """Assert that three kernels give the gradients that PyTorch gives, with no score in memory."""
    inputs = [tensor("q", 2, 4, 20, 16, dtype=dtype), *(tensor(name, 2, n_heads, 20, 16, dtype=dtype) for name in "kv")]
    text = f"def f(q, k, v): return {SDPA.format(arguments)}"
    checked = check(text, inputs=inputs, backward=True, schedule={"f.keeps": 0})
    assert checked.plan.backward is not None
    assert [tensor.name for tensor in checked.plan.backward.scratch] == ["statistics"]
    assert len(checked.plan.backward.steps) == 3


def rendered(arguments: str, inputs: list[object]) -> str:
    names = "q, k, v, m" if len(inputs) > 3 else "q, k, v"
    return plan_text(f"def f({names}): return {SDPA.format(arguments)}", inputs=inputs, backward=True).render({})


def operands(dtype: str, n_queries: int, n_keys: int) -> list[object]:
    return [
        tensor("q", 2, 2, n_queries, 32, dtype=dtype),
        *(tensor(name, 2, 2, n_keys, 32, dtype=dtype) for name in "kv"),
    ]


def check_sdpa(
    arguments: str, *, dtype: str = "f32", mask: str = "", n_queries: int = 37, n_keys: int = 70, **options: object
) -> Checked:
    """Assert that one kernel gives what PyTorch gives."""
    inputs = operands(dtype, n_queries, n_keys)
    names = "q, k, v"
    if mask:
        inputs.append(tensor("m", n_queries, n_keys, dtype=mask))
        names += ", m"
    text = f"def f({names}): return {SDPA.format(arguments)}"
    checked = check(text, inputs=inputs, **options)  # type: ignore[arg-type]
    assert checked.n_kernels == 1
    return checked


@pytest.mark.parametrize(
    "attention",
    [
        "torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v",
        "F.scaled_dot_product_attention(q, k, v, scale=0.25)",
    ],
)
def test_heads_whose_size_the_code_leaves_open_are_one_kernel(attention: str) -> None:
    """Their kernels need constant sizes: scores were stored, with gradients in nine launches."""
    inputs = [tensor(name, 2, 4, 600, 32) for name in "qkv"]
    text = plan_text(f"def f(q, k, v): return {attention}", inputs=inputs, backward=True).render({})
    assert text.split("// op: f_backward")[0].count("// launch") == 1
    assert "scratch: bmm" not in text
