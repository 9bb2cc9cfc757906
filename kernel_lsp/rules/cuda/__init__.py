"""Rules for `.cu` and `.cuh` files: `check`, and `parse` to keep a tree between calls. No compiler."""

from kernel_lsp.rules.cuda.checking import RULES, check
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse

__all__ = ["RULES", "ParsedCuda", "check", "parse"]
