"""Open documents: their texts, edits of ours, notebooks, places in them. Nothing here analyses.

In: what the client opens, changes and closes. Out: current texts, cells in order, and edits as the protocol has them.
Never: a write to a file.
"""
