"""The data model: frozen types without I/O. Imports no other package of ours."""
