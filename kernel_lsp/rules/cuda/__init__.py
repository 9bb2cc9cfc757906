"""Rules for `.cu` and `.cuh` files: `check` runs them, `parse` keeps a syntax tree between calls. No compiler is
needed."""

from kernel_lsp.rules.cuda.checking import RULES, check
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse

__all__ = ["RULES", "ParsedCuda", "check", "parse"]
