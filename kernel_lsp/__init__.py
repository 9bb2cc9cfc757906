"""kernel_lsp: optimize PyTorch to CUDA from your editor. Importing this module is free of side effects."""

__version__ = "0.1.0"
