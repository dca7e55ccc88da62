"""Corpora: read once (`survey`), encoded (`encode`), and stored in chunks on disk (`prepare`, `store`).

Start with `survey.Corpus`, `prepare.prepare_corpus` and `store.Split`. Must not import `lm.data`.
"""
