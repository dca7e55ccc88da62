"""Corpora as token shards on disk: held-out split, tokenisation in chunks, statistics, manifest, resumable preparation.

Start with `corpus` (`scan_corpus`, `split_into_chunks`) and `prepare_corpus`; `parallel_corpus` and `prepare_pairs` do
the same for sentence pairs. `shards`, `examples` and `pairs` are the formats on disk. Must not import `lm.data`.
"""
