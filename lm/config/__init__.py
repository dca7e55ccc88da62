"""Settings as frozen dataclasses: type, default, help and limits of each option; presets, `RunSpec` and `RunConfig`.

Start with `run` (`RunConfig`) and `options` (`option`, `CheckedConfig`); flags, TOML keys and messages are derived from
these fields. Must import neither torch nor numpy.
"""
