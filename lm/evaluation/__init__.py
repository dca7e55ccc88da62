"""Evaluation: perplexity, surprisal, translation and classification metrics, attention maps, model comparison.

Start with `window_scorers` (`TextScorer`), `batch_scoring` (`score_batch`) and `perplexity` (`PerplexityResult`). Must
not import `lm.training`, `lm.interop` or the command line.
"""
