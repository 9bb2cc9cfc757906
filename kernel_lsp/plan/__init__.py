"""The launch plan's grammar: parse, print, bind to shapes, check against the kernels. See `docs/kernel-format.md`."""
