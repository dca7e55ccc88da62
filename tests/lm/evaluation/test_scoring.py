"""Every token is scored once, as a float64 loop scores it, whatever the batch, the pieces and the kind of text."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from lm.config.inference import PerplexityConfig
from lm.config.model import ModelConfig
from lm.config.run_config import END_OF_TEXT, MASK, DataConfig, FilesConfig, TokenizerConfig
from lm.corpus import open_split
from lm.data import batched
from lm.data.windows import Rows
from lm.errors import InputError, UsageError
from lm.evaluation.perplexity import PerplexityResult
from lm.evaluation.scoring import ScoredTexts, Scorer, split_windows
from lm.hardware import Hardware
from lm.model import build_model
from lm.text.find import find_text_files
from lm.tokenizer import training
from lm.tokenizer.chat_template import SpecialTokenFrame, build_text_frame
from lm.training.objective import summed_loss
from tests.cli.small_runs import make_tokenizer
from tests.lm.corpus.preparing import prepare
from tests.lm.evaluation.small_models import (
    BPE,
    CHAR,
    CONTEXT,
    SEPARATOR,
    TEXT,
    loaded,
    make_model,
    random_tokens,
    score_document,
    score_files,
    token_by_token,
    train_tokenizer,
)
from tests.tolerances import approx, assert_close

START, END = 1000, 1001
BYTES = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0, special_tokens=(END_OF_TEXT, MASK))


@pytest.mark.parametrize(("context", "stride"), [(16, 16), (16, 8), (16, 1), (7, 3), (2, 1), (1, 1), (300, 300)])
@pytest.mark.parametrize("frame", [SpecialTokenFrame(), SpecialTokenFrame((START,), (END,))])
@pytest.mark.parametrize("masked", [False, True])
def test_windows_account_for_every_token_once_with_enough_context(context, stride, frame, masked):
    if masked and context <= len(frame):
        return
    for length, number in itertools.product((0, 1, 2, 15, 16, 17, 100), (1, 3)):
        parts = [(part, first == 0) for first, part in enumerate(np.array_split(np.arange(length), number))]
        windows = list(split_windows(parts, frame, context=context, stride=stride, masked=masked))
        scored = [token for window in windows for token in window.tokens[window.is_scored]]
        assert scored == list(range(0 if masked or frame.before else 1, length))
        whole = [*frame.before, *range(length), *(frame.after if masked else ())]
        for window in windows:
            assert len(window.tokens) <= context + (not masked)
            first = whole.index(window.tokens[0])
            assert window.tokens.tolist() == whole[first : first + len(window.tokens)]
            least = (context - stride) // 2 if masked else context - stride
            for place in np.flatnonzero(window.is_scored):
                assert place >= min(least, first + place)
                assert not masked or len(window.tokens) - 1 - place >= min(least, len(whole) - 1 - first - place)


@pytest.mark.parametrize(("context", "stride"), [(16, 16), (16, 8), (16, 1), (7, 3), (1, 1), (40, 25), (300, 300)])
@pytest.mark.parametrize("start_token", [None, 3])
def test_every_token_has_the_surprisal_of_a_float64_loop(context, stride, start_token):
    model, tokens = make_model(), random_tokens(45)
    expected = token_by_token(model, tokens, context=context, stride=stride, start_token=start_token)
    for length in (0, 1, 2, 9, 16, 17, 45):  # what comes later changes nothing, so the loop runs once
        for batch_size in (1, 3, 32):
            nats = score_document(
                model, tokens[:length], context=context, stride=stride, start_token=start_token, batch_size=batch_size
            )
            assert nats.dtype == np.float64
            assert len(nats) == max(0, length - (start_token is None))
            assert_close(nats, expected[: len(nats)], model=model, dtype=torch.float32)


def write(folder, *texts):
    for index, text in enumerate(texts):
        (folder / f"{index}.txt").write_bytes(text.encode())
    return [folder / f"{index}.txt" for index in range(len(texts))]


def total(scored):
    result = PerplexityResult()
    for some in scored:
        result.add(some)
    return result


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_files_are_scored_in_order_document_by_document(tokenizer, batch_size, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.text.decode.read_stream.__defaults__", (37,))
    monkeypatch.setattr("lm.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 300})
    parts = [[TEXT * 10, "x\n", "the owl\n"], [], ["T"], [TEXT]]
    files = write(tmp_path, *(f"{SEPARATOR}\n".join(part) for part in parts))
    found = score_files(make_model(), tokenizer, *files, context=16, stride=8, batch_size=batch_size)
    assert len(found) > 8
    for file, texts in enumerate(parts):
        for document, text in enumerate(texts):
            own = [s for s in found if (s.file, s.document) == (file, document)]
            tokens, start = tokenizer.encode(text), tokenizer.start_of_text
            assert np.concatenate([s.tokens for s in own]).tolist() == tokens
            assert "".join(s.text for s in own) == text
            for s in own:
                assert s.ends.tolist() == np.cumsum([len(tokenizer.token_bytes(token)) for token in s.tokens]).tolist()
            nats = np.concatenate([s.nats for s in own])
            expected = score_document(make_model(), tokens, context=16, stride=8, start_token=start)
            assert np.isnan(nats[: start is None]).all()
            assert_close(nats[int(start is None) :], expected, model=make_model(), dtype=torch.float32)
    result, text = total(found), "".join(itertools.chain(*parts))
    unscored = 5 if tokenizer is CHAR else 0
    assert (result.documents, result.unscored, result.bytes) == (5, unscored, len(text.encode()) - unscored)
    assert result.words == len(" ".join(itertools.chain(*parts)).split())


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_adapting_model_has_learned_from_each_batch_before_and_only_for_its_results(tmp_path, batch_size):
    model, rate = make_model(), 1e-3
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (scored,) = score_files(model, BPE, *write(tmp_path, TEXT), adapt=rate, batch_size=batch_size, stride=CONTEXT)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    reference, found = make_model().double(), []
    squares = [torch.zeros_like(weight) for weight in reference.parameters()]
    parts = [(np.asarray(scored.tokens, dtype=np.int64), True)]
    windows = list(split_windows(parts, build_text_frame(BPE), context=CONTEXT, stride=CONTEXT))
    for some in batched(windows, batch_size):
        nats = []
        for window in some:
            logits, is_scored = (
                reference(torch.from_numpy(window.tokens[None, :-1])),
                torch.from_numpy(window.is_scored),
            )
            expected = torch.from_numpy(window.tokens)[is_scored]
            nats.append(torch.nn.functional.cross_entropy(logits[0][is_scored[1:]], expected, reduction="none"))
        found.append(torch.cat(nats))
        gradients = torch.autograd.grad(found[-1].mean(), [*reference.parameters()])
        with torch.no_grad():
            for own, gradient, square in zip(reference.parameters(), gradients, squares, strict=True):
                square.lerp_(gradient**2, 0.01)
                own.sub_(rate * gradient / ((square / (1 - 0.99 ** len(found))).sqrt() + 1e-8))
    assert_close(scored.nats, torch.cat(found).detach().numpy(), model=model, depth=10, dtype=torch.float32)
    halves = make_model().bfloat16()
    (rounded,) = score_files(halves.float(), BPE, tmp_path / "0.txt", adapt=rate, batch_size=batch_size, stride=CONTEXT)
    (half,) = score_files(make_model().bfloat16(), BPE, tmp_path / "0.txt", adapt=rate, batch_size=batch_size,
                          stride=CONTEXT)  # fmt: skip
    assert np.array_equal(half.nats, rounded.nats)
    with pytest.raises(UsageError, match="masked models and int8 weights can't learn"):
        score_files(build_model(ModelConfig(objective="masked", vocab_size=320)), BPE, tmp_path / "0.txt", adapt=rate)


def test_a_model_of_nan_is_an_error_and_not_a_figure(tmp_path):
    """Also if only some of a window are not numbers."""
    model, token = make_model(tie_embeddings=False), BPE.encode("ÿ")[0]
    torch.nn.init.constant_(model.embedding.tokens.weight[token], math.nan)
    with pytest.raises(InputError, match="not a number"):
        score_files(model, BPE, *write(tmp_path, TEXT + "ÿ"))


def make_masked():
    shape = {"vocab_size": 258, "context_length": 12, "d_model": 16, "n_layers": 2, "n_heads": 2, "init_std": 0.3}
    return build_model(ModelConfig(**shape, objective="masked"), seed=1).eval()


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_a_masked_model_masks_each_token_in_turn(tmp_path, batch_size):
    """In documents that fit into the context, against one token at a time."""
    texts, masked = (
        ["The owl saw the fox.\n", "ü\n", "One two three four five six seven eight nine ten.\n"],
        make_masked(),
    )
    (file,) = write(tmp_path, f"{END_OF_TEXT}\n".join(texts))
    found = score_files(masked, BYTES, file, context=60, stride=30, batch_size=batch_size)
    expected = []
    for text in texts:
        ids = [BYTES.start_of_text, *BYTES.encode(text), BYTES.end_of_text]
        for place in range(1, len(ids) - 1):
            row = torch.tensor([ids])
            row[0, place] = BYTES.mask
            with torch.inference_mode():
                expected.append(-float(masked(row).double().log_softmax(-1)[0, place, ids[place]]))
    nats = np.concatenate([s.nats for s in found])
    assert_close(nats, np.array(expected), model=masked, dtype=torch.float32)


EXAMPLES = [
    ("The owl saw", " the fox."), ("", "past the mill"),
    ("Über den Bäumen sang the owl, and the fox ran past the mill; " * 3, "狐"), ("The mill stood", " still"),
]  # fmt: skip


def write_examples(folder):
    lines = [json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in EXAMPLES]
    (folder / "task.jsonl").write_text("\n".join(lines))
    return folder / "task.jsonl"


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_completions_have_the_loss_of_training_whatever_the_batch(tmp_path, batch_size):
    file, model = write_examples(tmp_path), make_model()
    files = find_text_files([str(file)])
    folder = prepare(files, BPE, DataConfig(validation="0"), tmp_path / "out").folder
    splits = [open_split(folder, split) for split in ("train", "validation")]
    data = Rows(*splits, context=CONTEXT, rows=len(EXAMPLES), seed=0)
    scored = score_files(model, BPE, file, batch_size=batch_size)
    result = total(scored)
    loss = summed_loss(model, data.batch(0), Hardware("cpu", "float32", 1))
    assert result.nats == approx(loss.item(), model=model)
    assert (result.tokens, result.documents) == (data.tokens, len(EXAMPLES))
    assert [s.text for s in scored] == [completion for _, completion in EXAMPLES]


def test_replies_are_normalised_by_the_text_within_the_context(tmp_path):
    tokenizer = train_tokenizer("byte").with_chat_template()
    model = make_model(vocab_size=tokenizer.vocab_size)
    talk = [("user", "Why?"), ("assistant", "It  is by the mill."), ("user", "So?"), ("assistant", "So")]
    rows = [{"messages": [{"role": role, "content": text} for role, text in talk[:number]]} for number in (2, 4)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = total(score_files(model, tokenizer, tmp_path / "chats.jsonl", batch_size=2))
    text = tokenizer.encode("".join(f"<|{role}|>{said}<|end|>" for role, said in talk), parse_special=True)
    ids = [tokenizer.start_of_text, *text][: CONTEXT + 1]
    start = ids.index(tokenizer.special_tokens["<|assistant|>"]) + 1
    scored = tokenizer.decode(ids[start:])
    assert scored == "It  is by"
    logits = model.logits(model.hidden(torch.tensor([ids[:-1]])))[0].log_softmax(-1)
    nats = -sum(logits[place - 1, ids[place]].item() for place in range(start, len(ids)))
    assert (result.shortened, result.documents) == (2, 2)
    assert result.nats == approx(2 * nats, model=model)
    assert (result.bytes, result.words) == (2 * len(scored), 2 * len(scored.split()))


PAIRS = [
    ("The owl saw the fox.", "Über den Bäumen sang 狐 the owl — and the fox ran."), ("The", "fox"), ("", ""),
    ("sang 狐 the owl — and the fox ran over the mill and back again", "the"), ("The owl", ""), ("The owl", "The owl"),
]  # fmt: skip
ONE_STACK = {"n_encoder_layers": 0, "decoder_only": True}


def alone(model, tokenizer, source, target):
    """Nats of a pair, one softmax at a time in float64, without padding."""
    end = tokenizer.end_of_text
    read, written = torch.tensor([[*tokenizer.encode(source), end]]), [*tokenizer.encode(target), end]
    inputs = torch.tensor([[end, *written[:-1]]])
    if model.config.decoder_only:
        logits = model(torch.cat((read, inputs), dim=1))[0, read.shape[1] :].detach().double().numpy()
    else:
        logits = model(read, inputs)[0].detach().double().numpy()
    return [math.log(np.exp(row).sum()) - row[index] for row, index in zip(logits, written, strict=True)]


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
@pytest.mark.parametrize(
    "fields", [{}, ONE_STACK, {"architecture": "lstm"}], ids=["encoder-decoder", "decoder-only", "recurrent"]
)
def test_each_pair_scores_as_it_does_alone(tmp_path, positions, fields, monkeypatch):
    tokenizer = make_tokenizer("bpe")
    shape = {"context_length": 64, "d_model": 32, "n_layers": 2, "n_encoder_layers": 1, "init_std": 0.3, **fields}
    if "architecture" not in fields:
        shape |= {"n_heads": 2, "positions": positions}
    model = build_model(ModelConfig(vocab_size=tokenizer.vocab_size, **shape), seed=3).eval()
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    texts = ScoredTexts(find_text_files([str(tmp_path / "pairs.tsv")], reading=FilesConfig(header=False)))
    whole = [pair for pair in PAIRS if all(pair)]
    for tokens in (1, 40, 100_000):
        monkeypatch.setattr("lm.evaluation.scoring._PAIR_TOKENS", tokens)
        found = list(Scorer(loaded(model, tokenizer), PerplexityConfig()).score(texts))
        result = total(found)
        for scored, pair in zip([each for each in found if len(each.nats)], whole, strict=True):
            assert_close(scored.nats, alone(model, tokenizer, *pair), model=model, dtype=torch.float32)
    assert (result.blank, result.documents) == (2, 4)
    assert result.tokens == sum(len(tokenizer.encode(target)) + 1 for _, target in whole)
