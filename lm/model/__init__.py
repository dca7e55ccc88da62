"""The transformer and its variants, as PyTorch modules.

Begin with `transformer` (`Block`, `Stack`, `DecoderOnly`, `EncoderOnly`, `EncoderDecoder`); it uses `attention`,
`kv_cache`, `layers` and `positions`. `loss` is the chunked cross-entropy, `lora` adapters, `cost` FLOPs and parameters;
`variants` holds experts, recurrent layers, sparse and compressed attention. Nothing here imports tokenizers, data,
engines or training.
"""
