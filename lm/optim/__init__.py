"""Optimizers (AdamW, Muon), learning-rate and batch-size schedules, and weight averaging.

Start reading at `optimizers.build_optimizers`. Imports models, not `lm.training`.
"""
