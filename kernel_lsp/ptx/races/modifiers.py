"""Memory-ordering modifiers of accesses through which threads communicate."""

from __future__ import annotations

STRONG_MODIFIERS = ("volatile", "acquire", "relaxed", "acq_rel", "release", "seq_cst", "mmio")
"""Modifiers of accesses through which threads may communicate."""
ACQUIRING_MODIFIERS = ("acquire", "acq_rel", "seq_cst")
RELEASING_MODIFIERS = ("release", "acq_rel", "seq_cst", "sc")
PAST_L1_MODIFIERS = ("cg", "cv")
"""Modifiers of loads that bypass the L1 cache."""
SHARED_MODIFIERS = ("shared", "shared__cta")
