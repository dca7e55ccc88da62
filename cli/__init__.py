"""The command line: Typer commands and everything that renders.

Start with `main`; each command is a module or package named after it. `options` parses, `console` prints. Training,
sizing and decoding policy belong in `lm`.
"""
