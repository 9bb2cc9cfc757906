"""The worker of a GPU: loads a candidate's machine code, runs it on cases and reports.

In: cubins and bound operations. Out: outputs, fingerprints and guards. The user's code never runs here.
"""
