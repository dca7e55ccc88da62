"""Engines compute logits for given tokens, rows, positions and KV cache, and hold no session state.

Begin with `engine` (the protocols `Engine` and `KVCache`, `OutputSpec`), then `selection` (which engine runs what).
`pytorch` runs every model, and holds the per-sequence KV cache; `tree_cache` is that of beams. `cuda_graph` and
`compiled` are faster for some models. `fastest_dtype` records the dtype for decoding. Nothing here imports decoding.
"""
