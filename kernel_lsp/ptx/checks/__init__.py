"""Checks beside a run: bounds of accesses, uninitialised reads, bank conflicts and sectors, livelock."""
