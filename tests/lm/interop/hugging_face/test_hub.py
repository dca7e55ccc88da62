"""Models of the Hub by name, whose client copies files from a folder here."""

import shutil
from fnmatch import fnmatch

import pytest

from lm import files
from lm.api import export
from lm.errors import InputError
from lm.interop.hugging_face import import_from_hub
from tests.cli.small_runs import make_tokenizer
from tests.lm.interop.hugging_face.models import random_config, random_run

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder as of the model org/tiny; what was downloaded of it is in a folder beside it."""
    tokenizer = make_tokenizer("bpe").with_chat_template()
    export(random_run(tmp_path / "run", random_config("llama", 0), tokenizer=tokenizer), tmp_path / "hub")
    (tmp_path / "hub" / "pytorch_model.bin").write_bytes(b"a pickle")
    (tmp_path / "hub" / "modeling_evil.py").write_text("raise SystemExit")
    downloaded = tmp_path / ("1" * 40)
    downloaded.mkdir()

    def snapshot_download(repository, *, revision, allow_patterns):
        if (repository, revision) != ("org/tiny", None):
            raise OSError("404\nno such model")
        for path in (tmp_path / "hub").iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copyfile(path, downloaded / path.name)
        return str(downloaded)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "hub", downloaded


def test_a_model_is_imported_once_without_code_and_pickles(hub):
    imported = []
    runs = {import_from_hub("hf:org/tiny", on_import=imported.append) for _ in range(2)}
    assert runs == {files.cache_root() / "models" / f"org--tiny-{'1' * 12}"}
    assert len(imported) == 1
    names = {path.name for path in hub[1].iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert not names & {"pytorch_model.bin", "modeling_evil.py", "README.md"}


def test_a_model_that_is_not_supported_costs_no_download(hub):
    config = hub[0] / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"mamba"'))
    with pytest.raises(InputError, match="hf:org/tiny.*model_type 'mamba'"):
        import_from_hub("hf:org/tiny")
    assert [path.name for path in hub[1].iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["org/other", "org/tiny@v9"])
def test_a_failure_is_one_line(hub, name):
    with pytest.raises(InputError, match=f"^hf:{name}: 404 no such model$"):
        import_from_hub(f"hf:{name}")
