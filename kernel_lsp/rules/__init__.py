"""Check PyTorch and CUDA text statically for slow, incorrect or fragile code while it is typed. No code is run.

`kernel_lsp.rules.pytorch.check` and `kernel_lsp.rules.cuda.check` return findings. `kernel_lsp.rules.registry` lists
all rules.
"""
