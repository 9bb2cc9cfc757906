"""Rules on arithmetic: types, doubles, signatures."""
