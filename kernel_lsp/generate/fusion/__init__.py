"""Fuse definitions into groups. Each group becomes one kernel."""
