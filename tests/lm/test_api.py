"""The front door does what the commands do, and imports nothing before it is asked for."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import lm
from cli.main import run
from lm.config.run_config import DataConfig
from lm.errors import UsageError
from tests.cli.small_runs import make_run
from tests.tiny_runs import RUNS
from tests.tolerances import assert_close


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "writer")


def test_nothing_heavy_is_imported_before_it_is_used():
    code = (
        "import sys, lm; heavy = {'torch', 'numpy', 'tokenizers', 'typer', 'rich'}; "
        "assert not heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)


def test_every_name_is_there_and_no_other():
    assert all(getattr(lm, name) is not None for name in lm.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        _ = lm.lode


def test_what_is_not_given_is_of_the_environment(writer, monkeypatch):
    monkeypatch.setenv("LM_DTYPE", "bfloat16")
    dtypes = {next(lm.load(writer, dtype=dtype).module.parameters()).dtype for dtype in (None, "float32")}
    assert dtypes == {torch.bfloat16, torch.float32}


def test_numbers_of_numpy_and_paths_are_settings(writer):
    plain = lm.load(writer).generate("The owl", max_tokens=5, temperature=0.0)
    assert plain == lm.load(writer).generate("The owl", max_tokens=np.int64(5), temperature=np.float64(0))
    spec = lm.run_spec(writer / "a.txt", learning_rate=np.float64(1e-3), validation=0.2, out=writer)
    assert (spec.settings["training"]["learning_rate"], spec.settings["data"]["validation"]) == (1e-3, "0.2")
    with pytest.raises(UsageError, match="temperature: .*object"):
        lm.load(writer).generate("The owl", temperature=object())
    with pytest.raises(UsageError, match="out: .*object"):
        lm.run_spec(writer / "a.txt", out=object())


def test_a_stream_has_the_text_and_the_end_of_every_sample(writer):
    model, settings = lm.load(writer), {"max_tokens": 9, "seed": 3}
    events = list(model.stream("The owl", n=3, **settings))
    assert sorted(event.row for event in events if isinstance(event, lm.Finish)) == [0, 1, 2]
    assert "".join(event.text for event in events if event.row == 0) == model.generate("The owl", **settings)


def test_what_is_scored_of_a_file_is_what_the_command_scores(tmp_path, capsys):
    """Of a run that learned labels, the labels; unless the column of the text is named."""
    folder = make_run(tmp_path / "run", data_kind="examples", data=DataConfig(label_column="label"))
    file, text = tmp_path / "held-out.jsonl", tmp_path / "text.txt"
    rows = [{"text": f"The owl saw {animal}", "label": animal} for animal in ("the fox", "the mill")]
    file.write_text("\n".join(map(json.dumps, rows)))
    text.write_text("The owl saw the fox.")
    model, labels = lm.load(folder), "".join(f"\n{row['label']}" for row in rows)
    for options, size in (({}, len(labels)), ({"text_column": "text"}, len(labels) - 2 + 2 * len("The owl saw "))):
        flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
        assert run(["perplexity", str(folder), str(file), *flags, "--json"]) == 0
        total, found = json.loads(capsys.readouterr().out)["total"], model.perplexity(file, **options)
        assert (found.tokens, found.bytes, total["bytes"]) == (total["tokens"], size, size)
        assert found.nats == pytest.approx(total["nats"])
    for wrong in ([file, text], [text, file]):
        with pytest.raises(UsageError, match="measure them separately"):
            model.perplexity(*wrong)


def test_logits_are_those_of_the_module(writer):
    model = lm.load(writer)
    ids = model.tokenizer.encode("The owl saw")
    with torch.inference_mode():
        assert torch.equal(model.logits(ids), model.module(torch.tensor([ids]))[0].float())


def test_a_model_that_was_trained_is_returned(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.en").write_text("one two\nthree four\n" * 40, encoding="utf-8")
    (tmp_path / "a.de").write_text("zwei eins\nvier drei\n" * 40, encoding="utf-8")
    model = lm.train(
        source=tmp_path / "a.en", target=tmp_path / "a.de", out=tmp_path / "run", preset="translation-tiny",
        tokenizer="byte", d_model=16, n_heads=2, steps=4, evaluate_every=2, batch_size=2, seed=7,
    )  # fmt: skip
    assert model.translate("one two") == lm.load(tmp_path / "run").translate("one two")
    with pytest.raises(UsageError, match="this run translates"):
        model.generate("one two")


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_run_is_exported_and_imported_again(tmp_path):
    lm.export(RUNS / "llama", tmp_path / "exported")
    back = lm.import_model(tmp_path / "exported", tmp_path / "back", threads=2, device="cpu", dtype="float32")
    assert torch.get_num_threads() == 2
    assert back.loaded.folder.parent.parent == tmp_path / "back"
    original, ids = lm.load(RUNS / "llama", dtype="float32"), [1, 2, 3]
    assert_close(back.logits(ids), original.logits(ids), model=original.module)


def test_adapters_are_merged_exported_and_imported_again(tmp_path):
    ids, original = [1, 2, 3], lm.load(RUNS / "lora", dtype="float32")
    lm.merge(RUNS / "lora", tmp_path / "merged")
    lm.export(RUNS / "lora", tmp_path / "peft", "peft")
    back = lm.import_model(tmp_path / "peft", tmp_path / "back", base=RUNS / "gpt", dtype="float32")
    for model in (lm.load(tmp_path / "merged", dtype="float32"), back):
        assert_close(model.logits(ids), original.logits(ids), model=original.module)
    base = lm.load(RUNS / "gpt", dtype="float32")
    assert (base.logits(ids) - original.logits(ids)).abs().max() > 0.01
