"""Facts of compiled code that probes ask for: launch-uniform predicates, address dependence, thread numbers.

In: PTX. Out: frozen facts. Nothing here knows of tasks or cases.
"""
