"""The analysis process: turns texts into diagnostics, symbols and targets, and rebases them onto the current text."""
