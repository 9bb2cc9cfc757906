"""Capture: a user's function or module as a core ATen graph with symbolic sizes.

In: a target and its inputs. Out: the JSON of a `Task`. The user's code runs here and nowhere else.
"""
