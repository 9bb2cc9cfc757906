"""Rules for Python files that use PyTorch: `check`, and `parse` to keep a tree between calls. Only `ast`, no torch."""

from kernel_lsp.rules.pytorch.checking import RULES, check
from kernel_lsp.rules.pytorch.parsing import ParsedModule, parse

__all__ = ["RULES", "ParsedModule", "check", "parse"]
