"""The optimization run: propose, evaluate, select, repeat; with an archive that survives any interruption."""
