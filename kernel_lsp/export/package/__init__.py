"""A project that pip installs: operators as a native extension with tests and provenance."""
