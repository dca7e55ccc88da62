"""Input text: find, decompress and decode files; yield documents, rows, examples, sentence pairs and prompts.

Start with `text_files` (`find_text_files`, `TextFile`) and `documents` (`read_pieces`). Knows nothing of
tokenizers or models: it may import only `lm.config` and the modules below it.
"""
