"""A text comes from the command line or from a pipe; a decoder or tokenizer from whatever names one."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from cli.flags.arguments import read_input_lines, read_text_argument
from cli.flags.loading import load_decoder, load_tokenizer
from lm.config.hardware import HardwareConfig
from lm.errors import InputError, UsageError
from tests.cli.small_runs import make_run, make_tokenizer


@pytest.fixture
def pipe(monkeypatch):
    """Puts bytes into stdin."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_an_argument_is_the_text(pipe):
    pipe(b"not this")
    assert read_text_argument("Once\n") == "Once\n"
    assert read_text_argument("") == ""


@pytest.mark.parametrize("argument", ["-", None])
def test_a_pipe_is_read_less_one_line_end(pipe, argument):
    for data, text in ((b"Once", "Once"), (b"Once\n", "Once"), (b"Once\r\n", "Once"), (b"Once\n\n", "Once\n")):
        pipe(data)
        assert read_text_argument(argument) == text


def test_bytes_that_are_no_text_are_refused(pipe):
    pipe(b"\xff")
    with pytest.raises(InputError, match="stdin"):
        read_text_argument("-")


def test_a_terminal_is_not_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert read_text_argument(None) is None


def test_files_and_stdin_follow_one_another(tmp_path, pipe):
    (tmp_path / "a").write_text("one\ntwo")
    pipe("狐\n\n".encode())
    assert list(read_input_lines([tmp_path / "a", Path("-")])) == ["one", "two", "狐", ""]


def test_a_tokenizer_of_a_file_a_folder_or_a_run(tmp_path):
    expected = make_tokenizer("bpe").sha256
    run = make_run(tmp_path / "novel")
    checkpoint = run / "checkpoints" / "step-0"
    for path in (run, checkpoint, checkpoint / "tokenizer.json"):
        assert load_tokenizer(path).sha256 == expected


def test_a_decoder_of_a_run_and_no_translation_model(tmp_path):
    model, loaded = load_decoder(make_run(tmp_path / "novel"), HardwareConfig(threads=1), instead="use lm translate")
    assert model is loaded.model
    with pytest.raises(UsageError, match="is an encoder-decoder, which translates: use lm translate"):
        load_decoder(
            make_run(tmp_path / "en-de", n_encoder_layers=1), HardwareConfig(threads=1), instead="use lm translate"
        )


@pytest.mark.slow
def test_garbage_is_collected_after_torch_is_imported_and_torch_is_not_searched():
    code = (
        "import gc, sys; from cli.flags.loading import import_torch;"
        "assert 'torch' not in sys.modules; import_torch(); assert 'torch' in sys.modules;"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
