"""Export the kernel and its PyTorch operator as files of the user's."""
