"""Chat templates of published families, each with a small tokenizer of its kind, so that tests need no download."""

from typing import NamedTuple

import tokenizers
from tokenizers import decoders, normalizers

from tests.lm import tokenizers_elsewhere

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_GENERATION = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
QWEN3 = """\
{%- set ns = namespace(last_query_index=messages|length - 1, is_found=false) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and not ns.is_found %}
        {%- set ns.last_query_index = (messages|length - 1) - loop.index0 %}{% set ns.is_found = true %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}{% set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""An empty think block stands before the last reply, and thoughts of earlier turns are left out."""
GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
"""The system prompt is refused, and the reply begins with a space."""


class Family(NamedTuple):
    """A chat template and a tokenizer of its kind.

    Attributes:
        template: Jinja.
        backend: the tokenizer.
        bos, eos: tokens that start and end a text.
        end_of_turn: the token after a reply.
        takes_system: whether a system prompt is allowed.
    """

    template: str
    backend: tokenizers.Tokenizer
    bos: str
    eos: str
    end_of_turn: str
    takes_system: bool = True


def _with_tokens(backend: tokenizers.Tokenizer, *names: str) -> tokenizers.Tokenizer:
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in names])
    return backend


def llama3() -> Family:
    backend = _with_tokens(tokenizers_elsewhere.cl100k_like(), "<|start_header_id|>", "<|end_header_id|>")
    return Family(LLAMA3, backend, "<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>")


def qwen2() -> Family:
    backend = _with_tokens(tokenizers_elsewhere.gpt2_like(), "<|im_start|>", "<|im_end|>")
    return Family(QWEN2, backend, "<|endoftext|>", "<|im_end|>", "<|im_end|>")


def chatml_generation() -> Family:
    return qwen2()._replace(template=CHATML_GENERATION)


def qwen3() -> Family:
    family = qwen2()
    family.backend.add_tokens(["<think>", "</think>"])
    return family._replace(template=QWEN3)


def gemma2() -> Family:
    backend = _with_tokens(tokenizers_elsewhere.llama2_like(), "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
    backend.normalizer = normalizers.Replace(" ", "▁")  # and no space before the first word
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_tokens([tokenizers.AddedToken("\n", normalized=False)])  # Gemma's vocabulary has line ends as they are
    return Family(GEMMA2, backend, "<bos>", "<eos>", "<end_of_turn>", takes_system=False)


def mistral() -> Family:
    return Family(MISTRAL, tokenizers_elsewhere.llama2_like(), "<s>", "</s>", "</s>", takes_system=False)


FAMILIES = [llama3, qwen2, qwen3, chatml_generation, gemma2, mistral]
