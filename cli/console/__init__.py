"""Terminal output: text, numbers, tables, curves, progress bars and heat maps.

Start reading at `text` and `tables`. Imports `lm` only for what needs no torch.
"""
