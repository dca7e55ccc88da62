"""`lm translate`, and the systems of `lm evaluate`.

Begin with `translate`, the command; `loading` loads the runs, `line_io` reads and writes lines, and `evaluation` scores
systems.
"""
