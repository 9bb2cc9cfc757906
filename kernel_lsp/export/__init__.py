"""What the user keeps: the kernel and its PyTorch operator."""
