"""Training data: from prepared tokens on disk to batches, with a reproducible sample order.

Start reading at `training_data.TrainingData` and `batch.Batch`; each kind of data has a module. Batches are NumPy
arrays: imports neither torch nor models.
"""
