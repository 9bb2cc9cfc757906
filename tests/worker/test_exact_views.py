"""Attention in the fp64 reference: its result is viewed in any layout, and its gradients are autograd's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernel_lsp.worker.oracle.fp64_reference import attention_gradients, attention_of_seen, run_exact


class Heads(torch.nn.Module):
    """Attention of transposed heads, and its results side by side, as `nn.MultiheadAttention` has them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(2, 5, 3, 4).transpose(1, 2)
        found = functional.scaled_dot_product_attention(heads, heads, heads)
        return torch.ops.aten.view.default(found.permute(2, 0, 1, 3).contiguous(), [10, 12])


def test_results_of_attention_are_viewed_in_any_layout() -> None:
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    exported: Any = torch.export.export(Heads(), (x,), strict=False)
    for node in exported.graph_module.graph.nodes:
        if "contiguous" in str(node.target) or "clone" in str(node.target):
            node.replace_all_uses_with(node.args[0])  # as export leaves out what changes nothing
    exported.graph_module.recompile()
    program: Any = SimpleNamespace(functional=exported)
    (found,) = run_exact(program, [x], attention_of_seen)
    assert torch.allclose(found, Heads()(x).double(), atol=1e-6)


@pytest.mark.parametrize("mask", ["", "causal", "bool", "added"])
def test_gradients_of_attention_are_those_of_autograd(mask: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3), (2, 4, 5, 3))
    *leaves, gradient = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    masks = {
        "bool": torch.ones(5, 6, dtype=torch.bool).tril(1),
        "added": torch.randn(5, 6, generator=generator).double(),
    }
    options: Any = {"is_causal": mask == "causal", "attn_mask": masks.get(mask), "scale": 0.3}
    out = attention_of_seen(*(leaf.requires_grad_() for leaf in leaves), enable_gqa=True, **options)
    expected = torch.autograd.grad(out, leaves, gradient)
    found = attention_gradients(lambda *step: step[2], torch.float32, gradient, *leaves, **options)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
