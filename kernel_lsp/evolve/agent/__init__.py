"""Coding agents: a workspace, tools over MCP, and proposals that agents make."""
