"""Engines compute logits for given tokens, rows, positions and KV cache, and hold no session state.

Begin with `engine` (the protocols `Engine` and `KVCache`, `OutputSpec`), then `selection` (which engine runs what).
`pytorch` runs every model; `cuda_graph` and `compiled` are faster for some, and `background` compiles
the latter. `row_cache` and `shared_cache` are the KV caches; `fastest_dtype` records the dtype that `lm compile`
measured. Nothing here imports decoding.
"""
