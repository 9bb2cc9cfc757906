"""Coding agents: a workspace, tools over MCP, and proposals made by agents."""
