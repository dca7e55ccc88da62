"""Planning of runs: settings, model size, regularisation, memory and time budgets.

Start reading at `resolve`, whose stages turn a specification into a plan. Of `lm.training` it imports only `corpus` and
`objective`.
"""
