"""Check PyTorch and CUDA text statically for slow, incorrect or fragile code while it is typed. No code is run.

In: the text of a file, which need not compile. Out: findings of `pytorch.check` and `cuda.check`, each with its place,
and a page for each rule of `registry`. Never: code that runs, or a finding for a construct that was not understood.
Size: more than a hundred rules by topic, each with its reasons and examples, and a simulation of one block of threads.
Scopes, types and strides are read without a compiler.
"""
