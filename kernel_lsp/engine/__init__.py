"""The engine: one process per workspace that runs its jobs. ``python -m kernel_lsp.engine`` speaks JSON lines.

In: requests of a language server (`messages`). Out: events of jobs, and a result or an error for each request. Never:
the Language Server Protocol, or a verdict that `verify` did not reach.
"""
