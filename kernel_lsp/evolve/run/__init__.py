"""A run: from a request to events, an exported winner and a stopping reason.

In: a request and a session. Out: a stream of events; every finished evaluation is in the archive first.
"""
