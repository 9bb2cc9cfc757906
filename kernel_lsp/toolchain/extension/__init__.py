"""Build torch extensions: headers, bindings, symbols, cached objects."""
