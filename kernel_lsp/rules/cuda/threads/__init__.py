"""Rules on threads of a block: barriers, warps, atomics, and how values depend on the thread."""
