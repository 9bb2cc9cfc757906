"""Static rules for PyTorch and CUDA text: what is slow, wrong or fragile, said while it is typed. Nothing is run.

`kernel_lsp.rules.pytorch.check` and `kernel_lsp.rules.cuda.check` give findings, `kernel_lsp.rules.registry` all rules.
"""
