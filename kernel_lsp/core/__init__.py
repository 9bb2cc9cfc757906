"""The nouns: frozen data with no I/O. Imports nothing else of ours."""
