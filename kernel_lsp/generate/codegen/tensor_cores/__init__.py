"""Contractions on tensor cores: `mma.sync` and `wgmma`, f32 by three TF32 products.

In: a contraction group and its schedule. Out: CUDA text whose f32 error is no larger than that of FMAs.
"""
