"""A project that pip installs: operators as a native extension with tests and provenance.

In: a verified kernel with its task and verdict. Out: the files of a project. Never: a kernel that was not verified, or
anything compiled here.
"""
