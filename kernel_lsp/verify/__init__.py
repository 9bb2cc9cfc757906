"""Judges: models that say how likely a kernel is right. They order and filter; they decide nothing."""
