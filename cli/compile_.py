"""`lm compile`: machine code for generation, made once."""

from __future__ import annotations


def compile_() -> None:
    """Compile the step by which models generate, once for a machine, which makes generation on a CPU faster.

    The machine code serves all models of blocks that attend to all positions or to a window of them, with weights in
    float32 or int8. It is kept in the folder LM_CACHE; from then on `lm generate` and other commands load it when they
    generate more than a few tokens. It takes half a minute or less, and the package numba: pip install
    'lm-toolkit[native]'.

    Examples:
      lm compile
      lm generate runs/novel "It was" --dtype int8
    """
    from cli.console.messages import note
    from cli.console.numbers import duration
    from lm.native.compiling import compile_step

    note(f"compiled the step of generation in {duration(compile_step())}")
