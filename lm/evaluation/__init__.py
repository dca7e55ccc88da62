"""Evaluation: perplexity, surprisal, translation and classification metrics, attention maps, model comparison.

Start with `scoring` (`Scorer`), the one loop that scores text, and `perplexity` (`PerplexityResult`), sums over it.
Must not import `lm.training`, `lm.interop` or the command line.
"""
