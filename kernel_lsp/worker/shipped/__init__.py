"""Files that become part of what users keep: compiling and launching a kernel from PyTorch.

They are copied as text into generated operators, so they import torch and the standard library alone.
"""
