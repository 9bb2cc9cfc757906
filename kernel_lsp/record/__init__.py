"""Record a run of the user's own program: which functions and modules of the workspace it calls, with what, how often,
and their share of a step.

Enters: a command line and a workspace. Leaves: the program's exit status, and `recorded.json` in `.kernel-lsp`. Never:
another result of the program, a hook that stays after the recording, or an import of ours into the program's
interpreter. `injected` is a folder for that interpreter: it comes first on its PYTHONPATH, and nobody imports it here.
"""
