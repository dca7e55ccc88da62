"""A decoder or a tokenizer from whatever names one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.flags.loading import load_decoder, load_tokenizer
from lm.config.hardware import HardwareConfig
from lm.errors import UsageError
from tests.cli.small_runs import make_run, make_tokenizer


def test_a_tokenizer_of_a_file_a_folder_or_a_run(tmp_path):
    expected = make_tokenizer("bpe").sha256
    run = make_run(tmp_path / "novel")
    checkpoint = run / "checkpoints" / "step-0"
    for path in (run, checkpoint, checkpoint / "tokenizer.json"):
        assert load_tokenizer(path).sha256 == expected


def test_a_decoder_of_a_run_and_no_translation_model(tmp_path, translation_run):
    model, loaded = load_decoder(make_run(tmp_path / "novel"), HardwareConfig(threads=1), instead="use lm translate")
    assert model is loaded.model
    with pytest.raises(UsageError, match="is an encoder-decoder, which translates: use lm translate"):
        load_decoder(translation_run, HardwareConfig(threads=1), instead="use lm translate")


def test_garbage_is_collected_after_torch_is_imported_and_torch_is_not_searched():
    code = (
        "import gc, sys; from cli.flags.loading import import_torch;"
        "assert 'torch' not in sys.modules; import_torch(); assert 'torch' in sys.modules;"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
