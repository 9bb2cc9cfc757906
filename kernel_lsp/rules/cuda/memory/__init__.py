"""Rules on memory: coalescing, strides, aliasing, shared memory."""
