"""Planning of runs: settings, model size, regularisation and time budgets.

Start reading at `plan`, whose stages turn a specification into a plan. Of `lm.training` it imports only
`training_corpus` and `objective`.
"""
