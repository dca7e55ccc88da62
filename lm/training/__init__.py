"""Training: resolve a specification into a plan, start or resume the run, and the training loop.

Start reading at `trainer.train_events`, then `run` and `loop`. A run (`run.Run`) is model, optimizers, data and
progress. Imports neither `lm.interop` nor the command line.
"""
