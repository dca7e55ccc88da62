"""Input text: find, decompress and decode files; yield records and prompts.

Start with `records` (`Record`), `find` (`find_text_files`) and `text_file` (`TextFile`). Knows nothing of tokenizers or
models: it may import only `lm.config` and the modules below it.
"""
