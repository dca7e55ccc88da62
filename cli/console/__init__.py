"""The terminal out: text, numbers, tables, curves."""
