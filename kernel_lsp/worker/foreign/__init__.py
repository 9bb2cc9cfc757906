"""Load and run foreign kernels: a torch extension or a `ModelNew` file.

In: a file and inputs. Out: results in files. Expected values are never in this process.
"""
