"""References in fp64, and the alternatives that a correct kernel may give at the same inputs.

In: a captured program and inputs. Out: expected values, tolerances and accepted alternatives.
"""
