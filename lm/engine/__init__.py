"""Engines compute logits for given tokens, rows, positions and KV cache, and hold no session state.

Begin with `pytorch` (the protocol `Engine`, and the engine that runs every model), then `selection` (which engine runs
what). `sequence_cache` and `tree_cache` are the KV caches of samples and beams; prefixes of prompts are cached beside
the first. `compiled` is faster for some models. `fastest_dtype` records the dtype for decoding. Nothing here imports
decoding.
"""
