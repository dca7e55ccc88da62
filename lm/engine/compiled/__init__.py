"""A decoding step in machine code: all layers of a model in one function, which numba compiles once for a machine."""
