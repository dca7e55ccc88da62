"""Terminal output: text, numbers, tables, curves, progress bars and heat maps.

Start reading at `messages` (stderr) and `tables` (stdout). Imports `lm` only for what needs no torch.
"""
