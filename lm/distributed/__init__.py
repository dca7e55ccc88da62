"""Data-parallel training on several processes: collectives, DDP and FSDP, and the launcher.

Start reading at `world.World`, which training uses on one process too; `parallel` has DDP and FSDP. Imports nothing of
`lm.optim` or `lm.training`.
"""
