"""Decoding: sampling, beam search, speculative decoding, translation, classification and mask filling.

Begin with `session` (`DecodeSession`, all that the rest uses of engines and KV caches), then `sampling` (filters and
`Sampler`), `batching` (the loop that samples) and `beam_search`. `generator`, `chat`, `translation` and `classifier`
are what commands and the API use. Nothing here imports evaluation or training.
"""
