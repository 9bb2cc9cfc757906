"""Attention in f32 by `wgmma`: tiles of whole swizzled rows, ragged sizes, masks, hard inputs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernel_lsp.generate.codegen.attention.warpgroup_attention import REGISTERS, WARPS
from tests.generate.harness import Checked, check, plan_text, tensor

GROUPS = {"f.warpgroups": 1}


def check_groups(
    arguments: str,
    *,
    head: int = 32,
    n_queries: int = 40,
    n_keys: int = 50,
    keys: int = 64,
    families: Sequence[str] = ("normal",),
) -> Checked:
    inputs = [tensor("q", 1, 2, n_queries, head), tensor("k", 1, 2, n_keys, head), tensor("v", 1, 2, n_keys, head)]
    text = f"def f(q, k, v): return F.scaled_dot_product_attention(q, k, v{arguments})"
    checked = check(text, inputs=inputs, schedule={**GROUPS, "f.keys": keys}, families=families)
    assert "wgmma.mma_async" in checked.text
    return checked


@pytest.mark.parametrize(("head", "keys", "n_queries"), [(64, 64, 130), (96, 32, 40)])
def test_causal_tiles(head: int, keys: int, n_queries: int) -> None:
    check_groups(", is_causal=True", head=head, n_queries=n_queries, n_keys=n_queries, keys=keys)


@pytest.mark.parametrize("family", ["special_nan", "special_inf", "large", "far_negative"])
def test_hard_inputs(family: str) -> None:
    check_groups("", families=(family,))


@pytest.mark.parametrize("copying", REGISTERS)
def test_gradients(copying: int) -> None:
    inputs = [tensor("q", 1, 2, 70, 32), *(tensor(name, 1, 1, 70, 32) for name in "kv")]
    text = "def f(q, k, v): return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)"
    knobs = {f"f_backward_{kernel}.copying": copying for kernel in ("statistics", "grad_q", "grad_v")}
    checked = check(text, inputs=inputs, backward=True, schedule={"f.keeps": 0, "statistics.warpgroups": 1, **knobs})
    assert checked.text.count(f"inc_registers<{REGISTERS[copying][0]}>();") == 3


@pytest.mark.parametrize("by_groups", [0, 1])
def test_scores_of_all_kernels_are_equal(by_groups: int) -> None:
    """Probabilities are the exponential of scores near 10^8 less a logarithm that another kernel has found."""
    inputs = [tensor("q", 1, 16, 128, 32), *(tensor(name, 1, 16, 2, 32) for name in "kv")]
    text = "def f(q, k, v): return F.scaled_dot_product_attention(q, k, v)"
    schedule = {"f.keeps": 0, "statistics.warpgroups": by_groups, "f.warpgroups": 0}
    check(text, inputs=inputs, backward=True, schedule=schedule, families=("large",))


def test_gradients_by_what_the_forward_has_kept() -> None:
    inputs = [tensor("q", 2, 2, 40, 32), *(tensor(name, 2, 2, 40, 32) for name in "kv")]
    text = "def f(q, k, v): return F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    checked = check(text, inputs=inputs, backward=True, schedule={"log_sums.warpgroups": 1}, families=("large",))
    assert "keeps: log_sums" in checked.text
    assert checked.text.count("inc_registers<208>();") == 3  # the forward's and both of the backward


def test_gradients_of_infinities() -> None:
    inputs = [tensor(name, 1, 1, 20, 32) for name in "qkv"]
    text = "def f(q, k, v): return F.scaled_dot_product_attention(q, k, v)"
    check(
        text,
        inputs=inputs,
        backward=True,
        schedule={"f.keeps": 0, "statistics.warpgroups": 1},
        families=("special_inf",),
    )


def test_large_attention_and_its_gradients_are_by_warp_groups_by_default() -> None:
    inputs = [tensor(name, 4, 32, 2048, 128) for name in "qkv"]
    text = "def f(q, k, v): return F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    program = plan_text(text, inputs=inputs, backward=True)
    default = program.render({})
    assert default.count("inc_registers<208>();") == default.count("dec_registers<40>();") == 3
    four = program.render({"f_backward_grad_q.copying": 4})
    assert four.count("inc_registers<232>();") == four.count("__launch_bounds__(384, 1)") == 1


@pytest.mark.parametrize("copying", REGISTERS)
def test_no_thread_waits_for_registers_that_its_block_has_not(copying: int) -> None:
    """A block starts with equal shares, in multiples of 8, and `setmaxnreg` moves no others."""
    multiplying, left = REGISTERS[copying]
    started = (WARPS + copying) * ((1 << 16) // ((WARPS + copying) * 32) // 8 * 8)
    assert WARPS * multiplying + copying * left <= started
