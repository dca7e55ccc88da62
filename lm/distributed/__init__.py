"""Data-parallel training on several processes: collectives, DDP and FSDP, and the launcher.

Start reading at `world.World`, which training uses on one process too; `process_group` implements it on
torch.distributed; `strategy` (DDP) and `fsdp` are the parallel strategies. Imports nothing of `lm.optim` or
`lm.training`.
"""
