"""Proposals: prompts, replies, populations and strategies, from models or from our generator's schedules."""
