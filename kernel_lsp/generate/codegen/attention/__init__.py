"""Attention in one kernel with an online softmax."""
