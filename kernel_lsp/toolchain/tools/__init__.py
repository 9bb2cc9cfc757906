"""NVIDIA's and LLVM's command-line tools: ncu, compute-sanitizer, clang-tidy, and parsers for their output."""
