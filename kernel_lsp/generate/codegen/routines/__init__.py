"""Kernels of algorithms that are no loop nest over definitions: sorting, recurrent layers."""
