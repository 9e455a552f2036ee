"""Code generation through LLVM, shared by x86 and ARM."""
