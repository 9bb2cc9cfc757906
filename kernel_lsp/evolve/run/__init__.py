"""A run: from a request to events, an exported winner and a stopping reason.

Input: a request and a session. Output: a stream of events; every finished evaluation is archived first.
"""
