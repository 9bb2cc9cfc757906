"""Infer what a target is called with from its text: no user code is executed."""
