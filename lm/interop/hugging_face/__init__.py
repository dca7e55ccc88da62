"""Hugging Face: export to and import from transformers and PEFT.

Start with `exporting` and `importing`; `families` describes each supported architecture as data.
"""
