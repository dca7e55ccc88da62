"""`lm train`: flags, plan, live display, TensorBoard and summary of a run.

Start reading at `train` (flags) and `running`. Training itself is in `lm.training`.
"""
