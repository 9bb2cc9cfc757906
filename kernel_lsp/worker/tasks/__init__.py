"""Examines tasks: outputs over seeds, the influence of inputs and weights, gradients.

In: a captured task and how often to run it. Out: measured facts, on which `verify/tasks` decides. Never: a judgement.
"""
