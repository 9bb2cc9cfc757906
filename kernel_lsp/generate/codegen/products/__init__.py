"""Contractions on CUDA cores: tiles in shared memory, and tiles whose products threads and clusters share."""
