"""The run: propose, evaluate, select, again; with an archive that survives any kill."""
