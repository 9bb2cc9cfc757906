"""Rules for Python files that use PyTorch: `check` runs them, `parse` keeps a syntax tree between calls. They need
only `ast`, not torch."""

from kernel_lsp.rules.pytorch.checking import RULES, check
from kernel_lsp.rules.pytorch.program.parsing import ParsedModule, parse

__all__ = ["RULES", "ParsedModule", "check", "parse"]
