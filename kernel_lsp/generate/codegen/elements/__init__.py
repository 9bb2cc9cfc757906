"""Elementwise kernels, boxes of elements, scatters, and the packs that loads and stores move."""
