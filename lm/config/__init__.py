"""Settings: each an annotated field with type, limits, help and default; presets, `RunSpec` and `RunConfig`.

Start with `settings` (how they are declared, converted and merged) and `run_spec`. Must import neither torch nor numpy.
"""
