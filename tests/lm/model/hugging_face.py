"""Weights of our models in Hugging Face's modules, for tests that compare the two."""

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

from lm.config.model import ModelConfig
from lm.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, build_model


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


def llama(model: DecoderOnly) -> LlamaForCausalLM:
    """Hugging Face's Llama with the weights of ours."""
    config = model.config
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.d_model, intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layers, num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_kv_heads, max_position_embeddings=config.context_length,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=config.tie_embeddings, rope_theta=config.rope_base,
        )
    ).eval()  # fmt: skip
    theirs.load_state_dict(_llama_state(model.state_dict(), config))
    return theirs


def _llama_state(ours: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    embedding = ours["embedding.tokens.weight"]
    state = {"model.embed_tokens.weight": embedding, "lm_head.weight": ours.get("head.weight", embedding),
             "model.norm.weight": ours["decoder.final_norm.weight"]}  # fmt: skip
    sizes = [config.n_heads * config.d_head, *[config.n_kv_heads * config.d_head] * 2]
    for layer in range(config.n_layers):
        block, theirs = f"decoder.blocks.{layer}.", f"model.layers.{layer}."
        state[theirs + "input_layernorm.weight"] = ours[block + "attention_norm.weight"]
        state[theirs + "post_attention_layernorm.weight"] = ours[block + "feed_forward_norm.weight"]
        projections = ours[block + "attention.input.weight"].split(sizes)
        for name, value in zip("qkv", projections, strict=True):
            state[theirs + f"self_attn.{name}_proj.weight"] = value
        state[theirs + "self_attn.o_proj.weight"] = ours[block + "attention.output.weight"]
        gate, up = ours[block + "feed_forward.up.weight"].chunk(2)
        state |= {theirs + "mlp.gate_proj.weight": gate, theirs + "mlp.up_proj.weight": up}
        state[theirs + "mlp.down_proj.weight"] = ours[block + "feed_forward.down.weight"]
    return state


def marian(model: EncoderDecoder) -> MarianMTModel:
    """Hugging Face's MarianMT, the post-norm model of 2017, with the weights of ours."""
    config = model.config
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size, d_model=config.d_model, max_position_embeddings=config.context_length,
            encoder_layers=config.n_encoder_layers, decoder_layers=config.n_layers,
            encoder_attention_heads=config.n_heads, decoder_attention_heads=config.n_heads,
            encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff,
            activation_function=config.activation, scale_embedding=config.scale_embeddings,
            pad_token_id=0, eos_token_id=0, decoder_start_token_id=0,
        )
    ).eval()  # fmt: skip
    state = _marian_state(model.state_dict())
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    made_by_them = {"final_logits_bias", "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}
    assert set(missing) == made_by_them, missing
    return theirs


def _marian_state(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    embedding = ours["embedding.tokens.weight"]
    tied = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    state = {f"{name}.weight": embedding for name in tied}
    names = {
        "cross_attention_norm": "encoder_attn_layer_norm", "attention_norm": "self_attn_layer_norm",
        "feed_forward_norm": "final_layer_norm", "cross_attention": "encoder_attn", "attention": "self_attn",
        "feed_forward.up": "fc1", "feed_forward.down": "fc2",
    }  # fmt: skip
    for name, value in ours.items():
        if name == "embedding.tokens.weight":
            continue
        stack, _, layer, part = name.split(".", 3)
        layer_name = f"model.{stack}.layers.{layer}."
        ours_first = next(key for key in names if part.startswith(key + "."))
        rest = part.removeprefix(ours_first + ".")
        if rest.startswith("input."):
            for letter, third in zip("qkv", value.chunk(3), strict=True):
                state[f"{layer_name}{names[ours_first]}.{letter}_proj.{rest.removeprefix('input.')}"] = third
        else:
            state[f"{layer_name}{names[ours_first]}.{rest.replace('output.', 'out_proj.')}"] = value
    return state


def bert(**fields) -> BertForMaskedLM:
    """Hugging Face's BERT with a head for masked tokens, and random weights; `fields` are those of their config."""
    shape = {
        "vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
        "max_position_embeddings": 16, **fields,
    }  # fmt: skip
    theirs = BertForMaskedLM(BertConfig(**shape, attn_implementation="eager")).eval()
    randomise(theirs)
    return theirs


def from_bert(theirs: BertForMaskedLM) -> EncoderOnly:
    """Our model with the weights of Hugging Face's; the first type of token, which all have, is part of positions."""
    config = theirs.config
    ours = build_model(
        ModelConfig(
            vocab_size=config.vocab_size, context_length=config.max_position_embeddings, d_model=config.hidden_size,
            n_layers=config.num_hidden_layers, n_heads=config.num_attention_heads, d_ff=config.intermediate_size,
            positions="learned", norm="layernorm", norm_position="post", norm_eps=config.layer_norm_eps,
            activation=config.hidden_act, bias=True, objective="masked", embedding_norm=True, output_transform=True,
        )
    )  # fmt: skip
    assert isinstance(ours, EncoderOnly)
    ours.load_state_dict(_bert_state(theirs.state_dict(), config.num_hidden_layers))
    return ours.eval()


def _bert_state(theirs: dict[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    embeddings, head = "bert.embeddings.", "cls.predictions."
    types = theirs[embeddings + "token_type_embeddings.weight"]
    state = {
        "embedding.tokens.weight": theirs[embeddings + "word_embeddings.weight"],
        "embedding.positions.weight": theirs[embeddings + "position_embeddings.weight"] + types[0],
        "output_bias": theirs[head + "bias"],
    }
    names = {
        "attention.output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
        "feed_forward.up": "intermediate.dense", "feed_forward.down": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    }  # fmt: skip
    for kind in ("weight", "bias"):
        state[f"embedding.norm.{kind}"] = theirs[f"{embeddings}LayerNorm.{kind}"]
        state[f"transform.up.{kind}"] = theirs[f"{head}transform.dense.{kind}"]
        state[f"transform.norm.{kind}"] = theirs[f"{head}transform.LayerNorm.{kind}"]
        for layer in range(n_layers):
            block, their_block = f"decoder.blocks.{layer}.", f"bert.encoder.layer.{layer}."
            parts = [theirs[f"{their_block}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            state[f"{block}attention.input.{kind}"] = torch.cat(parts)
            for name, their_name in names.items():
                state[f"{block}{name}.{kind}"] = theirs[f"{their_block}{their_name}.{kind}"]
    return state
