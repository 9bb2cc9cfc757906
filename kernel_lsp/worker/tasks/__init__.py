"""Examines tasks: outputs over seeds, the influence of inputs and weights, gradients."""
