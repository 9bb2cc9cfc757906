"""The analysis process: texts in, diagnostics, symbols and targets out, rebased onto the current text."""
