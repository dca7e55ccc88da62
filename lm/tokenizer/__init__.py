"""Tokenizers: train, load, encode and decode any `tokenizer.json`.

Start with `tokenizer` (`Tokenizer`, `split_into_pieces`); `training` trains BPE, character and byte vocabularies, and
`special_tokens` adds the tokens around a text. Must not import `lm.corpus` or anything above it.
"""
