"""Operators written by kernel-lsp."""
