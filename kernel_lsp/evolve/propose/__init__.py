"""Proposals: prompts, replies, populations and strategies, from models or from our generator's schedules.

In: a task, earlier verdicts, and models or a schedule space. Out: candidates, each with its origin. Never: a verdict.
"""
