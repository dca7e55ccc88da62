"""The working tree's command lines, made from those of the base commit by one table."""

import re
import shlex
from collections.abc import Mapping, Sequence

FLAGS: Mapping[str, str | None] = {
    "--architecture": "model.architecture",
    "--recurrent-attention": "model.recurrent_attention",
    "--n-encoder-layers": "model.n_encoder_layers",
    "--decoder-only": "model.decoder_only",
    "--n-kv-heads": "model.n_kv_heads",
    "--d-ff": "model.d_ff",
    "train --attention": "model.attention",
    "--attention-window": "model.attention_window",
    "--attention-block": "model.attention_block",
    "--global-blocks": "model.global_blocks",
    "--random-blocks": "model.random_blocks",
    "--attention-rank": "model.attention_rank",
    "--attention-stride": "model.attention_stride",
    "--max-distance": "model.max_distance",
    "--max-tree-distance": "model.max_tree_distance",
    "--syntax": "model.syntax",
    "--rope-base": "model.rope_base",
    "--d-head": "model.d_head",
    "--rotary-fraction": "model.rotary_fraction",
    "--rope-scaling": "model.rope_scaling",
    "--rope-factor": "model.rope_factor",
    "--rope-context": "model.rope_context",
    "--rope-slow": "model.rope_slow",
    "--rope-fast": "model.rope_fast",
    "--rope-temperature": "model.rope_temperature",
    "--attention-bias": "model.attention_bias",
    "--parallel-residual": "model.parallel_residual",
    "--norm": "model.norm",
    "--norm-position": "model.norm_position",
    "--norm-eps": "model.norm_eps",
    "--activation": "model.activation",
    "--qk-norm": "model.qk_norm",
    "--bias": "model.bias",
    "--attention-dropout": "model.attention_dropout",
    "--tie-embeddings": "model.tie_embeddings",
    "--scale-embeddings": "model.scale_embeddings",
    "--init-std": "model.init_std",
    "--zero-init": "model.zero_init",
    "--softcap": "model.softcap",
    "--value-residual": "model.value_residual",
    "--experts": "model.experts",
    "--experts-per-token": "model.experts_per_token",
    "--expert-every": "model.expert_every",
    "--expert-capacity": "model.expert_capacity",
    "--gate-noise": "model.gate_noise",
    "--embedding-norm": "model.embedding_norm",
    "--token-types": "model.token_types",
    "--output-bias": "model.output_bias",
    "--output-transform": "model.output_transform",
    "train --merges": "tokenizer.merges",
    "train --format": "files.format",
    "--skip-unreadable": "files.skip_malformed",
    "--skip-malformed": "files.skip_malformed",
    "train --header": "files.header",
    "--separator": "data.separator",
    "--bidirectional": "parallel.bidirectional",
    "--source-language": "parallel.source_language",
    "--target-language": "parallel.target_language",
    "train --source-column": "parallel.source_column",
    "train --target-column": "parallel.target_column",
    "--separate-vocabularies": "parallel.separate_vocabularies",
    "train --max-length": "parallel.max_length",
    "--max-ratio": "parallel.max_ratio",
    "--bpe-dropout": "parallel.bpe_dropout",
    "--bpe-dropout-until": "parallel.bpe_dropout_until",
    "--tokens": "training.tokens",
    "train --micro-batch-size": "training.micro_batch_size",
    "--schedule": "training.schedule",
    "--warmup-steps": "training.warmup_steps",
    "--final-learning-rate-fraction": "training.final_learning_rate_fraction",
    "--decay-fraction": "training.decay_fraction",
    "--beta1": "training.beta1",
    "--beta2": "training.beta2",
    "--epsilon": "training.epsilon",
    "--clip": "training.clip",
    "--checkpoint-every": "training.checkpoint_every",
    "--keep": "training.keep_checkpoints",
    "--patience": "training.patience",
    "--decay-patience": "training.decay_patience",
    "--label-smoothing": "training.label_smoothing",
    "--r-drop": "training.r_drop",
    "--expert-balance": "training.expert_balance",
    "--ema": "training.ema",
    "--best-by": "training.best_by",
    "--bleu-sentences": "training.bleu_sentences",
    "--masking-rate": "training.masking_rate",
    "--compile": "training.compile",
    "train --checkpoint-activations": "training.gradient_checkpointing",
    "--lora-on": "lora.on",
    "--lora-alpha": "lora.alpha",
    "--lora-dropout": "lora.dropout",
    "--token-healing": "sampling.token_healing",
    "chat --presence-penalty": "sampling.presence_penalty",
    "chat --frequency-penalty": "sampling.frequency_penalty",
    "chat --logit-bias": "sampling.logit_bias",
    "chat --min-tokens": "sampling.min_tokens",
    "chat --ignore-eos": "sampling.ignore_eos",
    "translate --min-p": "sampling.min_p",
    "translate --repetition-penalty": "sampling.repetition_penalty",
    "translate --presence-penalty": "sampling.presence_penalty",
    "translate --frequency-penalty": "sampling.frequency_penalty",
    "translate --logit-bias": "sampling.logit_bias",
    "--max-body": "server.max_body",
    "--prefill-chunk": "server.prefill_chunk",
    "perplexity --header": "files.header",
    "perplexity --label-column": "data.label_column",
    "evaluate --batch-tokens": "translation.batch_tokens",
    "prepare --merges": "tokenizer.merges",
    "prepare --header": "files.header",
    "tokenizer train --header": "files.header",
    "tokenizer train --label-column": "data.label_column",
    "--supervised": None,
    "tokenizer inspect --header": "files.header",
    "tokenizer inspect --label-column": "data.label_column",
    "--greedy": "--temperature 0",
    "translate --greedy": "--beam 1",
    "--typical": "--typical-p",
    "--no-repeat-ngram": "--no-repeat-ngram-size",
    "chat --typical": "sampling.typical_p",
    "translate --typical": "sampling.typical_p",
    "translate --no-repeat-ngram": "sampling.no_repeat_ngram_size",
    "--kind": "--tokenizer",
    "--no-cache": None,
    "--heads": "--dependency-heads",
    "--validation-heads": "--validation-dependency-heads",
    "--draft prompt": "--prompt-lookup",
    "--draft": "--draft-model",
    "--top-alternatives": "--top-logprobs",
    "--tensorboard": "training.tensorboard",
}
"""A flag of the base commit -> the words that replace it; its values stay behind them.

    "--typical": "--typical-p"              another name
    "--experts": "model.experts"            a setting: --set model.experts=VALUE; without a value true, as --no-X false
    "--greedy": "--temperature 0"           other words
    "--draft prompt": "--prompt-lookup"     of this value only
    "translate --sample": "--draw"          of this command only
    "--supervised": None                    nothing, and its values neither
"""
FORMS: Sequence[tuple[str, str]] = (
    (r"^copy (\S+) branch$", ""),
    (r"^train --resume branch/(\S+)", r"train --resume run/\1 -o branch"),
    (r"(labels\.jsonl.*) --supervised", r"\1 --label-column label"),
)
r"""What flags can't say: patterns of whole lines, as written in the cases, and what replaces them, before FLAGS.

    (r"^copy (\S+) branch$", "")            an empty line is skipped
    (r"^train --resume branch/(\S+)", r"train --resume run/\1 -o branch")
"""
FIELDS: Mapping[str, str] = {}
"""A field of the working tree's JSON output -> its name at the base commit."""
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    "base": {"LM_TOKEN_HEALING": "no"},
    "tree": {"LM_TOKEN_HEALING": "false"},
}
"""Variables of each tree's commands."""

_FLAG = re.compile(r"--?[a-z]")


def translate(
    line: str, flags: Mapping[str, str | None] = FLAGS, forms: Sequence[tuple[str, str]] = FORMS
) -> list[str]:
    """Return the words of a line of a case, with the names of the working tree."""
    for pattern, replacement in forms:
        line = re.sub(pattern, replacement, line)
    words = shlex.split(line)
    if not words:
        return []
    starts = [place for place, word in enumerate(words) if place == 0 or _FLAG.match(word)]
    parts = [words[start:end] for start, end in zip(starts, [*starts[1:], len(words)], strict=True)]
    return [word for part in parts for word in _replace(words[0], part, flags)]


def _replace(command: str, part: list[str], flags: Mapping[str, str | None]) -> list[str]:
    """Return what replaces a flag and its values."""
    flag, values = part[0], part[1:]
    for known, rest in ((" ".join(part[:2]), part[2:]), (flag, values)):
        for name in (f"{command} {known}", known):
            if name in flags:
                new = flags[name]
                return (
                    [] if new is None else _as_setting(new, rest, "true") if _is_setting(new) else [*new.split(), *rest]
                )
    positive = f"--{flag.removeprefix('--no-')}"
    new = flags.get(f"{command} {positive}", flags.get(positive))
    if flag.startswith("--no-") and new is not None and _is_setting(new):
        return _as_setting(new, values, "false")
    return part


def _is_setting(new: str) -> bool:
    return not new.startswith("-")


def _as_setting(name: str, values: list[str], switched: str) -> list[str]:
    value, rest = (values[0], values[1:]) if values else (switched, [])
    return ["--set", f"{name}={value}", *rest]
