"""The engine: one process per workspace that owns its jobs. ``python -m kernel_lsp.engine`` speaks JSON lines."""
