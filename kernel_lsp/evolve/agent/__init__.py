"""Coding agents: a workspace, tools over MCP, and proposals made by agents.

In: a task, and calls of an agent's tools. Out: results of the tools, and the agent's kernels as candidates. Never: a
tool that changes how a candidate is judged.
"""
