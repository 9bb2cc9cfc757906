"""The language server. Only this package knows the Language Server Protocol; no user code runs in its process."""
