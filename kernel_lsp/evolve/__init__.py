"""The optimization run: propose, evaluate, select, repeat; with an archive that survives any interruption.

In: a target, settings, and perhaps kernels to begin with. Out: a stream of `Event`s, an archive of every evaluation,
and the winner's files. Never: a winner without a full verdict, or an evaluation that a stopped run loses.
"""
