"""The supervisor of every subprocess: process group, deadline, bounded output, and termination of the whole group."""
