"""The archive (SQLite): runs, candidates, verdicts and model calls; datasets for training."""
