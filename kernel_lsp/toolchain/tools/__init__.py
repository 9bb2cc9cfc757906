"""NVIDIA's and LLVM's command-line tools: ncu, compute-sanitizer, clang-tidy, and the reading of what they print."""
