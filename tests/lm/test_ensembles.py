"""An ensemble, RUN,RUN or of members trained together, predicts the mean of its models' distributions, in all uses."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lm
from cli.main import run
from lm.config.inference import PerplexityConfig, ServerConfig
from lm.config.run_config import DataConfig, FilesConfig, HardwareConfig
from lm.evaluation.perplexity import open_texts
from lm.evaluation.scoring import Scorer
from lm.serving import answers
from lm.serving.bodies import NextBody, ScoreBody
from lm.serving.scheduler import load_models
from tests.cli.small_runs import TEXT, make_run
from tests.tolerances import assert_close

LABELS = {"objective": "masked", "labels": ("fear", "joy", "joyful"), "data": DataConfig(label_column="label")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pairs of runs that differ in their weights, and one with another tokenizer."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        make_run(folder / f"gpt-{seed}", seed=seed, n_layers=seed)
        make_run(folder / f"masked-{seed}", seed=seed, objective="masked")
        make_run(folder / f"labels-{seed}", seed=seed, **LABELS)
    make_run(folder / "char", kind="char")
    make_run(folder / "members", members=2)
    (folder / "text.txt").write_text(TEXT)
    return folder


def loaded(folder, kind: str) -> list[lm.Model]:
    """The ensemble of both runs of a kind, and each of them."""
    names = [f"{folder}/{kind}-{seed}" for seed in (1, 2)]
    return [lm.load(name, threads=1, dtype="float32") for name in (",".join(names), *names)]


@pytest.mark.parametrize("kind", ["gpt", "masked"])
def test_a_token_is_scored_by_its_mean_probability(folder, kind):
    both, one, other = (
        np.concatenate([
            scored.nats[scored.unscored :]
            for scored in Scorer(each.loaded, PerplexityConfig()).score(
                open_texts(each.loaded, [str(folder / "text.txt")], FilesConfig(), {})
            )
        ])
        for each in loaded(folder, kind)
    )  # fmt: skip
    assert both == pytest.approx(-np.log((np.exp(-one) + np.exp(-other)) / 2), rel=1e-6)
    assert not np.allclose(one, other, rtol=1e-2)


def test_members_that_were_trained_together_join_other_runs(folder):
    """Each of three models counts a third."""
    three = lm.load(f"{folder}/members,{folder}/gpt-1", threads=1, dtype="float32")
    first, second = (lm.load(folder / name, threads=1, dtype="float32") for name in ("members", "gpt-1"))
    ids = three.tokenizer.encode("The owl")
    mean = (2 * first.logits(ids).softmax(-1) + second.logits(ids).softmax(-1)) / 3
    assert_close(three.logits(ids).softmax(-1), mean, model=three.module)
    alone = [member(torch.tensor([ids]))[0].softmax(-1) for member in first.module.members]
    assert_close(first.logits(ids).softmax(-1), sum(alone) / 2, model=first.module)
    assert not torch.allclose(*alone, atol=1e-3)


def test_samples_continue_from_the_mean_distribution(folder):
    """Beyond the context too, and with a prefix that a session keeps."""
    both, *members = loaded(folder, "gpt")
    for prompt in ("The owl", TEXT[:120]):
        ids = both.tokenizer.encode(prompt)
        for token in both.stream(ids, seed=1, max_tokens=12, temperature=1.5):
            if not isinstance(token, lm.Token):
                break
            if len(ids) <= both.config.context_length:
                with torch.no_grad():
                    logits = [member.module.double()(torch.tensor([ids]))[0, -1] for member in members]
                mean = sum(each.softmax(-1) for each in logits) / 2
                assert_close(torch.tensor(token.logprob), mean[token.id].log(), model=both.module)
            ids.append(token.id)
    mean = sum(member.logits(ids[:9]).softmax(-1) for member in members) / 2
    assert_close(both.logits(ids[:9]).softmax(-1), mean, model=both.module)
    best = both.generate("The owl", temperature=0, max_tokens=8)
    assert best == lm.load(f"{folder}/gpt-2,{folder}/gpt-1").generate("The owl", temperature=0, max_tokens=8)


def test_a_server_answers_by_the_mean_distribution(folder):
    both, *_ = loaded(folder, "gpt")
    (served,) = load_models(
        {"both": Path(f"{folder}/gpt-1,{folder}/gpt-2")}, HardwareConfig(dtype="float32", threads=1), ServerConfig()
    ).values()
    scored = answers.score(served, ScoreBody(text=TEXT[:80]))
    (folder / "part.txt").write_text(TEXT[:80])
    assert scored["nats"] == pytest.approx(both.perplexity(folder / "part.txt").nats, rel=1e-5)
    ids = both.tokenizer.encode("The owl")
    (best, *_) = answers.next_tokens(served, NextBody(prompt=ids))["tokens"]
    probabilities = both.logits(ids)[-1].softmax(-1)
    assert best["probability"] == pytest.approx(float(probabilities.max()), rel=1e-5)


def test_labels_and_masks_have_mean_probabilities(folder):
    both, *members = [next(model.classify(["the fox"])).probabilities for model in loaded(folder, "labels")]
    for label, probability in both.items():
        assert probability == pytest.approx(sum(each[label] for each in members) / 2, rel=1e-5)
    both, *members = [model.fill("the [MASK] ran", top_k=300).blanks[0] for model in loaded(folder, "masked")]
    mean = {each.id: sum(other.probability for m in members for other in m if other.id == each.id) / 2 for each in both}
    assert [each.probability for each in both] == pytest.approx([*mean.values()], rel=1e-4)


def test_commands_take_ensembles_of_models_that_fit_together(folder, capsys):
    name, text = f"{folder}/gpt-1,{folder}/gpt-2", str(folder / "text.txt")
    for command in (["perplexity", name, text], ["evaluate", name, text]):
        assert run([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["total"]["tokens"]
    assert run(["generate", name, "The owl", "-n", "2", "--max-tokens", "3", "--seed", "1", "--json"]) == 0
    capsys.readouterr()
    for other in ("char", "masked-1"):
        assert run(["generate", f"{folder}/gpt-1,{folder}/{other}", "The"]) == 2
        assert f"{other}: has another tokenizer, or is another kind of model" in capsys.readouterr().err
    assert run(["generate", f"{folder}/gpt-1,{folder}/none", "The"]) == 1
    assert "none: neither" in capsys.readouterr().err
