"""Timed subjects on a GPU: a candidate, eager PyTorch or a mode of torch.compile.

In: a prepared subject and a number of calls. Out: raw times. The command compares them.
"""
