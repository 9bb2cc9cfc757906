"""Check the instructions that load the tiles of a contraction."""

from __future__ import annotations

from kernel_lsp.generate.codegen.products.matmul import innermost
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index


def test_which_of_mixed_variables_is_innermost_does_not_depend_on_hashes() -> None:
    for serial in range(16):
        k, m = Variable("k", serial, as_index(5)), Variable("m", serial, as_index(7))
        assert innermost((as_index(m) + as_index(k)) // 3) == k
