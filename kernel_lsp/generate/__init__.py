"""Propose kernels by rules: a captured graph becomes few fused kernels with a launch plan, and a schedule space."""
