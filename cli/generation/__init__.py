"""`lm generate`.

Begin with `generate`, the command; `prompt_file` is its --prompts, `interactive` its --interactive, and `writers`
writes the results.
"""
