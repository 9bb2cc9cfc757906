"""The digest of a target: our own edits leave it, every other edit changes it."""

from __future__ import annotations

import pytest

from kernel_lsp.source.python_file import parse_python, target_digest
from kernel_lsp.source.pytorch import targets_in

IMPORT = "from kernels.norm import use_norm\n"
BEFORE = "class Net(nn.Module):\n    def __init__(self):\n        self.norm = Norm(8, (1, 2))\n"
USED = BEFORE.replace("Norm(8, (1, 2))", "use_norm(Norm(8, (1, 2)))")


def digest(text: str) -> str:
    source = parse_python(f"import torch.nn as nn\n{text}", "net.py")
    (target,) = targets_in(source)
    return target_digest(source, target.line, target.end_line)


def test_a_call_that_uses_the_operator_leaves_the_digest() -> None:
    assert digest(IMPORT + USED) == digest(BEFORE)


@pytest.mark.parametrize("changed", [USED, BEFORE.replace("8", "9"), f"# kernel-lsp: shape\n{BEFORE}"])
def test_any_other_edit_changes_it(changed: str) -> None:
    assert digest(changed) != digest(BEFORE)
