"""Completions are scored as training learns them: the same ids, the same targets, the same loss."""

import numpy as np
import pytest
import torch

from lm.config.data import DataConfig
from lm.corpus.store import open_split
from lm.data.batch import Batch
from lm.data.rows import ExampleData
from lm.evaluation.completion_scoring import score_completions
from lm.hardware import Hardware
from lm.text.find import find_text_files
from lm.text.records import Part, Record
from lm.training.objective import summed_loss
from tests.lm.corpus.preparing import prepare
from tests.lm.evaluation.small_models import BPE, CONTEXT, make_model, token_by_token, train_tokenizer
from tests.tolerances import approx

EXAMPLES = [
    Record.of_example("The owl saw", " the fox.", line=1),
    Record.of_example("", "past the mill", line=2),
    Record.of_example("Über den Bäumen sang the owl, and the fox ran past the mill; " * 3, "狐", line=4),
    Record.of_example("The mill stood", " still", line=5),
]


@pytest.fixture
def data(tmp_path) -> ExampleData:
    lines = [each.to_json() for each in EXAMPLES]
    (tmp_path / "task.jsonl").write_text("\n".join(lines))
    config = DataConfig(validation="0")
    files = find_text_files([str(tmp_path / "task.jsonl")])
    folder = prepare(files, BPE, config, tmp_path / "out").folder
    train, validation = (open_split(folder, split) for split in ("train", "validation"))
    return ExampleData(train, validation, context=CONTEXT, rows=len(EXAMPLES), seed=0)


def measured(model, examples, *, batch_size=16, context=CONTEXT, parallel_map=None):
    *_, last = score_completions(
        model, BPE, examples, context=context, batch_size=batch_size, name="task.jsonl", parallel_map=parallel_map
    )
    return last


def rows(batch: Batch) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(tuple(row), tuple(wanted)) for row, wanted in zip(batch.inputs, batch.targets, strict=True)}


def test_training_and_scoring_give_a_model_the_same_rows(data):
    read: list[Batch] = []
    last = measured(
        None,
        EXAMPLES,
        parallel_map=lambda batches: (read.append(batch) or [np.zeros(3)] * batch.rows for batch in batches),
    )
    (batch,) = read
    assert rows(batch) == rows(data.batch(0))
    assert last.shortened == data.n_truncated == 1


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_the_score_is_the_loss_of_training_whatever_the_batch(data, batch_size):
    model = make_model()
    loss = summed_loss(model, data.batch(0), Hardware("cpu", "float32", 1))
    result = measured(model, EXAMPLES, batch_size=batch_size).result
    assert result.nats == approx(loss.item(), model=model)
    assert (result.tokens, result.documents) == (data.tokens, len(EXAMPLES))
    assert result.words == sum(len(each.parts[1].text.split()) for each in EXAMPLES)
    assert result.bytes == sum(len(each.parts[1].text.encode()) for each in EXAMPLES)


def test_only_the_completion_and_its_end_count():
    model, (example, *_) = make_model(), EXAMPLES
    ids = [*BPE.encode(example.parts[0].text), *BPE.encode(example.parts[1].text), BPE.end_of_text]
    learned = len(BPE.encode(example.parts[1].text)) + 1
    nats = token_by_token(model, ids, context=CONTEXT, stride=1, start_token=BPE.start_of_text)
    assert measured(model, [example]).result.nats == approx(nats[-learned:].sum(), model=model)


def test_replies_are_normalised_by_the_text_within_the_context():
    tokenizer = train_tokenizer("byte").with_chat_template()
    model = make_model(vocab_size=tokenizer.vocab_size)
    talk = [("user", "Why?"), ("assistant", "It  is by the mill."), ("user", "So?"), ("assistant", "So")]
    conversations = [Record(tuple(Part(role, text) for role, text in talk[:number]), line=number) for number in (2, 4)]
    *_, last = score_completions(model, tokenizer, conversations, context=CONTEXT, batch_size=2, name="chats.jsonl")
    text = tokenizer.encode("".join(f"<|{role}|>{said}<|end|>" for role, said in talk), parse_special=True)
    ids = [tokenizer.start_of_text, *text][: CONTEXT + 1]
    start = ids.index(tokenizer.special_tokens["<|assistant|>"]) + 1
    scored = tokenizer.decode(ids[start:])
    assert scored == "It  is by"
    logits = model.logits(model.hidden(torch.tensor([ids[:-1]])))[0].log_softmax(-1)
    nats = -sum(logits[place - 1, ids[place]].item() for place in range(start, len(ids)))
    assert last.shortened == 2
    assert last.result.nats == approx(2 * nats, model=model)
    assert (last.result.bytes, last.result.words) == (2 * len(scored), 2 * len(scored.split()))
