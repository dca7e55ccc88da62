"""Each system gets its own, and what there is to say of it is said."""

import importlib
from typing import get_args

import pytest

from lm.config.export import EXPORTERS, ExportConfig, ExportFormat
from lm.interop.exporting import export_run
from tests.cli.small_runs import make_run
from tests.lm.interop.gguf.models import plain_run


@pytest.mark.parametrize("system", get_args(ExportFormat))
def test_each_system_has_an_exporter(system):
    module, _, function = EXPORTERS[system].function.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_a_folder_for_transformers(tmp_path):
    told = export_run(make_run(tmp_path / "run"), tmp_path / "out", ExportConfig())
    assert told["model"].startswith("LlamaForCausalLM of transformers, which needs no code of ours: norm rmsnorm")
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_file_for_llama_cpp(tmp_path):
    pytest.importorskip("gguf")
    told = export_run(plain_run(tmp_path / "run", "qwen2"), tmp_path / "out", ExportConfig(to="gguf", type="q8_0"))
    assert told["model"].startswith("qwen2 of llama.cpp, q8_0: norm rmsnorm, positions rotary")
    assert told["tokens"] == "pre-tokenised as by qwen2; texts are not brought to the normal form C of Unicode there"
    assert (tmp_path / "out").is_file()


@pytest.mark.parametrize(("layers", "kind"), [(0, "Generator"), (1, "Translator")])
def test_a_folder_for_ctranslate2(layers, kind, tmp_path):
    pytest.importorskip("ctranslate2")
    run = make_run(tmp_path / "run", n_encoder_layers=layers)
    assert (
        export_run(run, tmp_path / "out", ExportConfig(to="ctranslate2"))["model"] == f"for ctranslate2.{kind}, float32"
    )
    assert (tmp_path / "out" / "model.bin").is_file()
