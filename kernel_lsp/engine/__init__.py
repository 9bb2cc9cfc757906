"""The engine: one process per workspace that runs its jobs. ``python -m kernel_lsp.engine`` speaks JSON lines."""
