"""What the modifiers of an access say about threads that talk to each other by it."""

from __future__ import annotations

STRONG_MODIFIERS = ("volatile", "acquire", "relaxed", "acq_rel", "release", "seq_cst", "mmio")
"""Of accesses that threads may use to talk to each other."""
ACQUIRING_MODIFIERS = ("acquire", "acq_rel", "seq_cst")
RELEASING_MODIFIERS = ("release", "acq_rel", "seq_cst", "sc")
PAST_L1_MODIFIERS = ("cg", "cv")
"""Of loads that do not look into the cache of a multiprocessor."""
SHARED_MODIFIERS = ("shared", "shared__cta")
