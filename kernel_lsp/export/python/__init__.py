"""Export the PyTorch operator as Python text: contract, launches, autograd, fallback."""
