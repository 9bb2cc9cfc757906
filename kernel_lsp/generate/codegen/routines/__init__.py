"""Kernels of algorithms that are no loop nest over definitions: sorting, recurrent layers.

In: a routine of the lowering and its schedule. Out: its kernels. Never: a loop nest that fusion could write.
"""
