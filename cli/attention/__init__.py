"""`lm attention`, and the attention maps of `lm translate`.

Begin with `attention`, the command; `rendering` is text and JSON, `html_page` and `plot` are the other formats, and
`output` writes files.
"""
