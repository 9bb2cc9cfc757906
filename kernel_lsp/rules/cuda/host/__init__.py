"""Rules on host code: launches, transfers, synchronization."""
