"""The archive (SQLite): runs, candidates, verdicts and model calls; rows to learn from."""
