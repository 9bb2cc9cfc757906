"""Runtime checks: bounds, uninitialised reads, bank conflicts and sectors, livelock."""
