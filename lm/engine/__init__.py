"""Engines compute logits for given tokens, rows, positions and KV cache, and hold no session state.

Begin with `engine` (the engine that runs every model in PyTorch) and `kv_cache`, then `selection` (which engine runs
what). `compiled` is faster for some models. `fastest_dtype` records the dtype for decoding. Nothing here imports
decoding.
"""
