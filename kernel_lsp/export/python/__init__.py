"""The PyTorch operator that users keep, as text: contract, launches, autograd, fallback."""
