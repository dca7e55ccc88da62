"""Bad input: one clear line on stderr, the right exit code, no traceback, nothing on stdout."""

from __future__ import annotations

import shutil

import pytest

from cli.main import run
from tests.system.conftest import SMALL

CASES = {
    "missing file": (["train", "{0}/none.txt"], 1, "none.txt: no such file"),
    "missing folder in a glob": (["train", "{0}/none/*.txt"], 1, "none/*.txt"),
    "binary file": (["train", "{0}/binary.bin"], 1, "binary.bin: looks like a binary file"),
    "invalid UTF-8": (["train", "{0}/latin1.txt"], 1, "latin1.txt: not valid UTF-8 at byte offset 3"),
    "empty corpus": (["train", "{0}/empty.txt"], 1, "empty"),
    "no corpus": (["train"], 2, "name a corpus"),
    "corpus shorter than a context": (["train", "{0}/short.txt", "--kind", "byte"], 1, "one window takes 129"),
    "unknown preset": (["train", "{0}/text.txt", "--preset", "gtp2"], 2, "did you mean 'gpt2'"),
    "encoder-decoder preset": (["train", "{0}/text.txt", "--preset", "transformer-base"], 2, "encoder-decoder"),
    "unknown flag": (["train", "{0}/text.txt", "--stepz", "3"], 2, "no option --stepz (did you mean '--steps'?)"),
    "a missing argument": (["generate"], 2, "RUN is missing (see lm generate --help)"),
    "a prompt without quotes": (["generate", "{0}/run", "It", "was"], 2, "unexpected 'was'; put a text of several"),
    "no value": (["train", "{0}/text.txt", "--steps"], 2, "--steps needs a value"),
    "no sample": (["generate", "{0}/run", "x", "-n", "0"], 2, "--samples must be at least 1, not 0"),
    "broken settings": (["train", "{0}/text.txt", "--config", "{0}/broken.toml"], 2, "broken.toml: not TOML"),
    "missing settings": (["train", "{0}/text.txt", "--config", "{0}/none.toml"], 1, "none.toml: no such file"),
    "a prompt that is not UTF-8": (["generate", "{0}/run", "--prompt-file", "{0}/latin1.txt"], 1, "it could be CP125"),
    "attention to nothing": (["attention", "{0}/run", " "], 2, "there is no text"),
    "measuring an empty file": (["perplexity", "{0}/run", "{0}/empty.txt"], 1, "empty.txt: nothing to score"),
    "unknown command": (["trian"], 2, "no command 'trian' (did you mean 'train'?)"),
    "no number": (["train", "{0}/text.txt", "--steps", "many"], 2, "--steps must be an integer, not 'many'"),
    "negative size": (["train", "{0}/text.txt", "--d-model", "-8"], 2, "d_model must be at least 1, not -8"),
    "zero steps": (["train", "{0}/text.txt", "--steps", "0"], 2, "steps must be at least 1, not 0"),
    "two lengths": (["train", "{0}/text.txt", "--steps", "3", "--epochs", "1"], 2, "only one of steps, epochs (--steps, --epochs)"),
    "heads that don't divide": (["train", "{0}/text.txt", "--n-heads", "3"], 2, "n_heads 3 does not divide d_model"),
    "unknown choice": (["train", "{0}/text.txt", "--schedule", "cosin"], 2, "did you mean 'cosine'"),
    "a folder with a run": (["train", "{0}/text.txt", "-o", "{0}/run", *SMALL], 1, "holds a run already; choose another folder, or resume it (--out, --resume {0}/run)"),
    "a tokenizer that is none": (["train", "{0}/text.txt", "--tokenizer", "{0}/text.txt"], 1, "text.txt: not a tokenizer.json"),
    "the wrong tokenizer": (["train", "{0}/characters", "--tokenizer", "{0}/other.json"], 1, "other.json: not the tokenizer"),
    "validation beyond one": (["train", "{0}/text.txt", "--validation", "1.5", *SMALL], 2, "validation"),
    "resuming nothing": (["train", "--resume", "{0}/nowhere"], 1, "nowhere: no such run"),
    "resuming a folder that is no run": (["train", "--resume", "{0}/characters"], 1, "characters: not a run"),
    "generating from no run": (["generate", "{0}/characters", "x"], 1, "characters: not a run"),
    "negative temperature": (["generate", "{0}/run", "x", "--temperature", "-1"], 2, "temperature must be at least 0"),
    "top-p above one": (["generate", "{0}/run", "x", "--top-p", "1.5"], 2, "top_p must be at most 1"),
    "no tokens": (["generate", "{0}/run", "x", "--max-tokens", "0"], 2, "max_tokens must be at least 1"),
    "a device that is not there": (["generate", "{0}/run", "x", "--device", "mps"], 2, "no mps device"),
    "measuring nothing": (["perplexity", "{0}/run", "{0}/none.txt"], 1, "none.txt: no such file"),
    "measuring a binary file": (["perplexity", "{0}/run", "{0}/binary.bin"], 1, "binary.bin"),
    "measuring invalid UTF-8": (["perplexity", "{0}/run", "{0}/latin1.txt"], 1, "latin1.txt: not valid UTF-8 at byte offset 3"),
    "a stride beyond the context": (["perplexity", "{0}/run", "{0}/text.txt", "--stride", "99"], 2, "stride"),
    "more experts a token than there are": (["train", "{0}/text.txt", "--experts", "2", "--experts-per-token", "3", *SMALL], 2, "experts_per_token 3 is more than experts 2"),
    "experts a token without experts": (["train", "{0}/text.txt", "--experts-per-token", "2", *SMALL], 2, "is for a model with experts (--set model.experts, --set model.experts_per_token)"),
    "experts that are compiled": (["train", "{0}/text.txt", "--experts", "2", "--compile", *SMALL], 2, "a model with experts is not compiled"),
    "a run almost": (["perplexity", "{0}/rum", "{0}/text.txt"], 1, "rum: no such run (did you mean '{0}/run'?)"),
    "a step that is not there": (["generate", "{0}/run/checkpoints/step-7", "x"], 1, "no such checkpoint; there is step-30"),
    "the mean of no run": (["average", "{0}/nowhere", "-o", "{0}/mean"], 1, "nowhere: no such run"),
    "tokens of another tokenizer": (["train", "{0}/mixed"], 1, "mixed/tokenizer.json: not the tokenizer that made the tokens in {0}/mixed; prepare the corpus again"),
    "examples that are text": (["train", "{0}/text.txt", "--supervised"], 1, "line 1: not JSON"),
    "a folder with a run as text": (["train", "{0}", "--kind", "byte"], 1, "run: is a run, not a text"),
    "an infinite length": (["train", "{0}/text.txt", "--epochs", "inf", *SMALL], 2, "epochs must be a finite number, not inf"),
    "a separator that is not UTF-8": (["train", "{0}/text.txt", "--separator", "\udcff", *SMALL], 2, "separator is not valid UTF-8"),
    "a stop string that is not UTF-8": (["generate", "{0}/run", "x", "--stop", "\udcff"], 2, "stop is not valid UTF-8"),
    "a bias that is not UTF-8": (["generate", "{0}/run", "x", "--logit-bias", "\udcff=1"], 2, "logit_bias is not valid UTF-8"),
    "a sample that is not UTF-8": (["train", "{0}/text.txt", "--sample", "\udcff", *SMALL], 2, "sample is not valid UTF-8"),
    "encoding what is not UTF-8": (["tokenizer", "encode", "{0}/other.json", "\udcff"], 2, "TEXT is not valid UTF-8"),
    "inspecting what is not UTF-8": (["tokenizer", "inspect", "{0}/other.json", "\udcff"], 2, "TEXT is not valid UTF-8"),
    "a special token that is not UTF-8": (["tokenizer", "train", "{0}/text.txt", "-o", "{0}/x.json", "--special", "\udcff"], 2, "a special token is not valid UTF-8"),
    "an unknown character that is not UTF-8": (["tokenizer", "train", "{0}/text.txt", "-o", "{0}/x.json", "--kind", "char", "--unknown", "\udcff"], 2, "is not valid UTF-8"),
    "a prefix that is not UTF-8": (["translate", "{0}/run", "--prefix", "\udcff"], 2, "prefix is not valid UTF-8"),
    "control characters in a name": (["train", "{0}/\x1b[31mnone.txt"], 1, "␛[31mnone.txt: no file matches"),
    "control characters in a key": (["train", "{0}/keys.jsonl"], 2, r"its fields are '\x1b[31mkey"),
    "holding out everything": (["train", "{0}/text.txt", "--validation", "{0}/text.txt", *SMALL], 1, "no text is left to train on"),
    "a hundred layers": (["train", "{0}/text.txt", "--depth", "100"], 2, "--depth must be from 1 to 99, not 100"),
    "more threads than can be": (["generate", "{0}/run", "x", "--threads", "100000"], 2, "threads must be at most 1024"),
    "a run that is not called UTF-8": (["train", "{0}/text.txt", "-o", "{0}/\udcff", *SMALL], 1, "the name of a run must be valid UTF-8"),
    "measuring speed for ever": (["bench", "--seconds", "inf"], 2, "--seconds must be a finite number"),
    "a beam without limit": (["generate", "{0}/run", "x", "--beam", "99999999"], 2, "beam must be at most 1024"),
    "a beam of translations without limit": (["translate", "{0}/run", "--beam", "99999999"], 2, "beam must be at most 1024"),
    "a vocabulary without limit": (["tokenizer", "train", "{0}/text.txt", "-o", "{0}/x.json", "--vocab-size", "9" * 21], 2, "vocab_size must be at most 1048576"),
    "merges of nothing": (["prepare", "{0}/text.txt", "--min-frequency", "9" * 21], 2, "min_frequency must be at most"),
    "resamples without limit": (["evaluate", "--hypotheses", "{0}/text.txt", "--target", "{0}/text.txt", "--resamples", "9" * 11], 2, "resamples must be at most 100000"),
    "a drawing as wide as a town": (["plot", "{0}/run", "--width", "9" * 12], 2, "--width must be from 20 to 1000"),
    "a drawing as high as a tower": (["plot", "{0}/run", "--height", "9" * 9], 2, "--height must be from 3 to 1000"),
    "more than there is memory for": (["bench", "tiny", "--seconds", "0", "--batch-size", "9" * 11], 1, "the memory is not enough"),
    "a run in a file": (["train", "{0}/text.txt", "-o", "{0}/text.txt/run", *SMALL], 1, "run: cannot be made, since {0}/text.txt is a file"),
    "tokens in a file": (["prepare", "{0}/text.txt", "-o", "{0}/text.txt/x", "--kind", "byte"], 1, "text.txt: is a file, not a folder"),
    "a tokenizer in a file": (["tokenizer", "train", "{0}/text.txt", "-o", "{0}/text.txt/x"], 1, "text.txt: is a file, not a folder"),
    "a corpus in a file": (["corpus", "get", "stories", "-o", "{0}/text.txt"], 1, "text.txt: is a file, not a folder"),
    "a picture in a file": (["attention", "{0}/run", "x", "-o", "{0}/text.txt/x.html"], 1, "text.txt: is a file, not a folder"),
    "translations in a folder": (["evaluate", "{0}/run", "--source", "{0}/text.txt", "--target", "{0}/text.txt", "-o", "{0}"], 2, "neither translates nor classifies"),
    "surprisal in a file": (["perplexity", "{0}/run", "{0}/text.txt", "--html", "{0}/text.txt/x"], 1, "text.txt: is a file, not a folder"),
    "the runs in a file": (["runs", "{0}/text.txt"], 1, "text.txt: is a file, not a folder of runs"),
    "the mean of one checkpoint": (["average", "{0}/run/checkpoints/step-30", "-o", "{0}/mean"], 2, "is one checkpoint, but a mean takes two"),
    "a language of a run that continues texts": (["attention", "{0}/run", "x", "--to", "de"], 2, "it has no language 'de' (--to)"),
    "a translation that is not UTF-8": (["attention", "{0}/run", "x", "--target", "\udcff"], 2, "target is not valid UTF-8"),
    "information on nothing": (["info", "{0}/nowhere"], 1, "nowhere: neither a run nor a preset"),
    "a text without a name": (["train", ""], 2, "CORPUS… is an empty name; give a path"),
    "a text without a name among others": (["perplexity", "{0}/run", "{0}/text.txt", ""], 2, "is an empty name"),
    "sources without a name": (["train", "--source", "", "--target", "{0}/text.txt"], 2, "--source is an empty name"),
    "a run without a name": (["generate", "", "x"], 2, "RUN is an empty name"),
    "a place without a name": (["train", "{0}/text.txt", "-o", ""], 2, "--out is an empty name"),
    "a run to resume without a name": (["train", "--resume", ""], 2, "--resume is an empty name"),
    "a sample of unknown characters": (["train", "{0}/text.txt", *SMALL[:-1], "char", "--steps", "2", "--sample", "日"], 1, "sample '日': "),
    "a preset almost": (["info", "gtp2"], 2, "did you mean 'gpt2'"),
}  # fmt: skip


@pytest.fixture(scope="session")
def files(place):
    (place / "binary.bin").write_bytes(b"\x7fELF\x00\x01\x02" * 100)
    (place / "latin1.txt").write_bytes("Caf\xe9 au lait\n".encode("latin-1") * 50)
    (place / "empty.txt").write_text("")
    (place / "keys.jsonl").write_text('{"\\u001b[31mkey\\u009b": "some text", "other": "more"}\n')
    (place / "broken.toml").write_text("[model\n")
    (place / "short.txt").write_text("too short\n")
    assert run(["prepare", str(place / "text.txt"), "-o", str(place / "characters"), "--kind", "char"]) == 0
    assert run(["tokenizer", "train", str(place / "text.txt"), "-o", str(place / "other.json"), "--kind", "byte"]) == 0
    shutil.copytree(place / "characters", place / "mixed")
    shutil.copy(place / "other.json", place / "mixed" / "tokenizer.json")
    return place


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line(name, files, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments, code, message = CASES[name]
    capsys.readouterr()
    assert run([argument.format(files) for argument in arguments]) == code
    captured = capsys.readouterr()
    said = captured.err.strip().splitlines()
    assert message.format(files) in said[-1]
    assert said[-1].startswith("lm: ")
    assert not any("Traceback" in line for line in said)
    assert captured.out == ""
    assert not (tmp_path / "runs").exists()
