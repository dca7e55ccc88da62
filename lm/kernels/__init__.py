"""Products and functions of vectors in machine code, which numba compiles once for a machine."""
