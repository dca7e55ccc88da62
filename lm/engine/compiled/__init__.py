"""The compiled CPU decode step: all layers of a model in one function, compiled by numba once per machine.

Begin with `engine` (`CompiledEngine`), then `decode_step`. `build` is what `lm compile` runs.
"""
