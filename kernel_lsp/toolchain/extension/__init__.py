"""Builds of torch extensions: headers, bindings, symbols, cached objects."""
