"""The folder of a model as transformers lays it out.

config.json                      the model
model.safetensors                its weights, or model.safetensors.index.json, which says in which of several files
                                 each tensor is
tokenizer.json                   the tokenizer, with tokenizer_config.json
generation_config.json           how texts are drawn
README.md                        the model card
"""

from __future__ import annotations

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
