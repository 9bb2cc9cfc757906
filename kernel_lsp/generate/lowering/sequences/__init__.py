"""Lowering rules for algorithms along one dim: running values, sorted rows, recurrent layers."""
