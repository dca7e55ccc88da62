"""Command-line input: flags made from config fields, environment variables, shell completion and help.

Start with `options` (`with_options`). May import `lm.config` and, inside functions, loaders of models.
"""
