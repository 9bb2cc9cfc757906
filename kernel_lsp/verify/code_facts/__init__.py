"""Facts of compiled code that probes ask for: launch-uniform predicates, address dependence, thread numbers.

In: PTX. Out: frozen facts. Nothing here depends on tasks or cases.
"""
