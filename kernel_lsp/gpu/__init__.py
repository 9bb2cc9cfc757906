"""GPU specifications, and time estimates based on them."""
