"""A hundred wrong inputs: one line on stderr, nothing on stdout, exit code 2 for usage and 1 for the rest."""

import shlex
from pathlib import Path

import pytest

from cli.main import run
from tests.cli.small_runs import make_run

USAGE = """
    nothing
    finetune text.txt
    train
    train text.txt --lr 3
    train text.txt --experts 4
    train text.txt --nonsense
    train text.txt --steps
    train text.txt --steps many
    train text.txt --steps 0
    train text.txt --steps -1
    train text.txt --steps 1.5
    train text.txt --steps 99999999999999999999999
    train text.txt --epochs 0
    train text.txt --epochs nan
    train text.txt --epochs inf
    train text.txt --budget soon
    train text.txt --budget 0s
    train text.txt --steps 3 --epochs 2
    train text.txt --steps 3 --budget 1m
    train text.txt --batch-size 0
    train text.txt --batch-size 4 --batch-tokens 64
    train text.txt --learning-rate -1
    train text.txt --learning-rate fast
    train text.txt --dropout 1
    train text.txt --weight-decay nan
    train text.txt --seed -1
    train text.txt --seed x
    train text.txt --positions rotray
    train text.txt --optimizer sgd
    train text.txt --objective next
    train text.txt --device tpu
    train text.txt --dtype float8
    train text.txt --dtype int8
    train text.txt --threads 0
    train text.txt --processes 0
    train text.txt --depth 0
    train text.txt --depth 2 --preset tiny
    train text.txt --depth 2 --n-layers 3
    train text.txt --preset tinny
    train text.txt --preset gpt2 --portable
    train text.txt --vocab-size 10
    train text.txt --vocab-size 300 --tokenizer run
    train text.txt --tokenizer char --vocab-size 300
    train text.txt --n-heads 3 --steps 1
    train text.txt --encoding utf-9
    train text.txt --set
    train text.txt --set model.d_model
    train text.txt --set model.d_modle=3
    train text.txt --set d_model.model=3
    train text.txt --set model.d_model=wide
    train text.txt --set model.bias=perhaps
    train text.txt --set lora.alpha=16 --steps 1
    train text.txt --set lora.on=everything --steps 1
    train text.txt --set model.experts_per_token=2 --steps 1
    train text.txt --set model.rope_factor=2 --steps 1
    train text.txt --set model.rope_scaling=yarn --set model.rope_factor=0 --steps 1
    train text.txt --set model.attention_window=4 --steps 1
    train text.txt --set model.rope_scaling=yarn --set model.rope_fast=0 --steps 1
    prepare text.txt -o tokens --tokenizer char --vocab-size 300
    train text.txt --set training.masking_rate=0.2 --steps 1
    train text.txt --set training.schedule=cosine --set training.decay_fraction=0.5 --steps 1
    train text.txt --set parallel.bpe_dropout=0.1 --steps 1
    train text.txt --set model.architecture=lstm --set model.experts=2 --steps 1
    train text.txt --set model.syntax=depth --steps 1
    train text.txt --set model.decoder_only=true --set model.n_encoder_layers=1 --steps 1
    train text.txt --set model.attention=linformer --steps 1
    train text.txt --set model.qk_norm=true --set model.d_head=3 --steps 1
    train text.txt --lora 4 --steps 1
    train text.txt --from run --portable
    train --source text.txt
    train --target text.txt
    train --source text.txt --target text.txt --validation-source text.txt
    train --source text.txt --target text.txt --set parallel.bidirectional=true --steps 1
    train --dependency-heads text.txt text.txt
    train --resume run --preset tiny
    train --resume run --learning-rate 1
    train --resume run --set model.d_model=64
    train --resume run -o other
    train --resume run --config settings.toml
    train text.txt --config wrong.toml
    train text.txt --config value.toml
    train text.txt --config text.txt
    generate
    generate run "-5 + 3"
    generate run a b c
    generate run --temperature -1
    generate run --temperature hot
    generate run --top-p 2
    generate run --top-k -1
    generate run --stop ""
    generate run --max-tokens 0
    generate run --beam 0
    generate run --beam 2 --top-k 3
    generate run --length-penalty 2
    generate run -o out.txt
    generate run The --prompts text.txt
    generate run The --logit-bias nothing
    translate run text.txt
    classify run text.txt
    fill run "a [MASK]"
    perplexity run text.txt --stride 0
    perplexity run text.txt --stride 64 --context 32
    perplexity run text.txt --versus translator
    perplexity run text.txt --csv --json
    perplexity run text.txt --show --json
    evaluate run text.txt --versus run
    generate run The --seed 1 --set sampling.seed=2
    evaluate run --source text.txt --target text.txt
    evaluate translator --target text.txt
    evaluate translator --hypotheses text.txt --target text.txt
    perplexity run text.txt --versus run --html page.html
    train half.jsonl --steps 1
    evaluate
    export run -o out --to onnx
    export run -o out --to gguf --type int3
    serve run --port 70000
    tokenizer
    tokenizer train text.txt -o t.json --kind words
    attention run "The owl" --layer 0
    bench nothing
    info missing
"""
OTHERS = """
    train missing.txt
    train 'missing*.txt'
    train text.txt --config missing.toml
    train text.txt --source text.txt --target text.txt
    train --source missing.en --target missing.de
    train empty.txt --steps 1
    train text.txt --label-column topic --steps 1
    train binary.txt --steps 1
    train --resume missing
    generate run --prompts '*.txt'
    train text.txt --from missing --steps 1
    train text.txt --tokenizer missing.json --steps 1
    train text.txt -o full --steps 1
    generate missing "The owl"
    generate run --prompts missing.txt
    perplexity run missing.txt
    translate translator half.jsonl
    perplexity missing text.txt
    export missing -o out
    tokenizer encode missing.json text
    tokenizer train text.txt -o full/there
    average missing -o out
    merge missing -o out
    import missing -o out
    plot missing
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    make_run(folder / "run")
    make_run(folder / "translator", n_encoder_layers=1)
    (folder / "full").mkdir()
    for name, text in {
        "text.txt": "The owl saw the fox by the mill.\n" * 50, "empty.txt": "", "full/there": "",
        "settings.toml": "[model]\nd_model = 32\n", "wrong.toml": "model = [", "value.toml": "[model]\nd_model = 'x'\n",
        "half.jsonl": '{"source": "The owl"}\n',
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 40)
    return folder


def cases():
    for code, lines in ((2, USAGE), (1, OTHERS)):
        yield from (pytest.param(shlex.split(line), code, id=line.strip()) for line in lines.strip().splitlines())


@pytest.mark.parametrize(("words", "code"), [*cases()])
def test_a_wrong_input_is_one_line(folder, monkeypatch, capsys, words, code):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert run(words) == code, capsys.readouterr()
    output = capsys.readouterr()
    messages = [line for line in output.err.splitlines() if line.startswith("lm: ")]
    assert len(messages) == 1
    assert output.err.endswith(messages[0] + "\n")
    assert output.out == ""
    assert sorted(folder.rglob("*")) == before
    assert Path.cwd() == folder
