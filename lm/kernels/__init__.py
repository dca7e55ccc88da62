"""CPU kernels compiled by numba once per machine: int8 and float32 matmul, top k, and vector functions.

Begin with `torch_ops`, which takes tensors and falls back to torch; then `matmul` and its `micro_kernels`, written in
LLVM IR. `vector_ops` serves the compiled decode step. `jit` and `code_cache` keep compiled
code on disk. Nothing here imports models.
"""
