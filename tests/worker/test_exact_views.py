"""The fp64 reference views what attention gives in any layout: PyTorch's own has the strides of its heads' inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from kernel_lsp.worker.oracle.fp64_reference import attention_of_seen, run_exact


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
