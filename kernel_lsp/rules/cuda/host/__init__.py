"""Rules on host code: launches, transfers, synchronization.

In: the model of a file with its launches and plan. Out: findings on launches, copies and unchecked errors. Never: host
code that runs.
"""
