"""The archive (SQLite): runs, candidates, verdicts and model calls; datasets for training.

In: events, candidates and verdicts as they are reached. Out: runs that resume, reports and datasets. Never: a finished
evaluation that is not committed.
"""
