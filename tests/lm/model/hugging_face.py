"""Random weights, and our GPT-2 in Hugging Face's module, for tests that compare the two."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from lm.model import DecoderOnly


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Every parameter becomes random, norms and biases too, so that none can be ignored."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.1
        parameter.data = noise + (1.0 if parameter.ndim == 1 else 0.0)


def gpt2(model: DecoderOnly) -> GPT2LMHeadModel:
    """Hugging Face's GPT-2 with the weights of ours."""
    config = model.config
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size, n_positions=config.context_length, n_embd=config.d_model,
            n_layer=config.n_layers, n_head=config.n_heads, n_inner=config.d_ff,
            resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.dropout,
        )
    ).eval()  # fmt: skip
    ours = model.state_dict()
    names = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2", "attention.input": "attn.c_attn",
             "attention.output": "attn.c_proj", "feed_forward.up": "mlp.c_fc",
             "feed_forward.down": "mlp.c_proj"}  # fmt: skip
    embedding = ours["embedding.tokens.weight"]
    state = {"transformer.wte.weight": embedding, "lm_head.weight": embedding,
             "transformer.wpe.weight": ours["embedding.positions.weight"]}  # fmt: skip
    for kind in ("weight", "bias"):
        state[f"transformer.ln_f.{kind}"] = ours[f"decoder.final_norm.{kind}"]
        for layer in range(config.n_layers):
            for name, their_name in names.items():
                value = ours[f"decoder.blocks.{layer}.{name}.{kind}"]
                # their linear layers are stored transposed
                state[f"transformer.h.{layer}.{their_name}.{kind}"] = value.T if value.ndim == 2 else value
    theirs.load_state_dict(state)
    return theirs
