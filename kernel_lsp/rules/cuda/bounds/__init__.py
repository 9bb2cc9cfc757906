"""Rules on indices and sizes."""
