"""The transformer and its variants, as PyTorch modules.

Begin with `transformer` (`Block`, `Stack`, `DecoderOnly`, `EncoderOnly`, `EncoderDecoder`); it uses `attention`,
`cpu_kernels`, `mask`, `kv_cache`, `attention_inputs`, `layers` and `positions`. `loss` is the
chunked cross-entropy, `lora` adapters, `cost` FLOPs and parameters; `variants` holds experts, recurrent layers, sparse
and low-rank attention. Nothing here imports tokenizers, data, engines or training.
"""
