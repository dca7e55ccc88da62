"""Tokenizers give the same ids here and in transformers, out and in again, for texts of any characters."""

import json
import random

import pytest
from transformers import AutoTokenizer

from lm.checkpoint import load_tokenizers
from lm.interop.hugging_face.exporting import export_hugging_face
from lm.interop.hugging_face.importing import import_model
from lm.run_folder import find_checkpoint
from lm.text.conversations import Message
from lm.tokenizer.chat_template import ChatTemplate
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer
from tests.lm.chat_families import llama3, qwen2
from tests.lm.interop.hugging_face.models import FIELDS, qwen2_tokenizer, random_config, random_run
from tests.lm.tokenizers_elsewhere import MADE, backend

OURS = ("bpe", "char", "byte")
NAMES = [*MADE, *OURS, "qwen2"]
ALPHABET = "The owl saw the fox by the mill."
RANGES = [
    (32, 126), (9, 13), (160, 591), (768, 879), (880, 1279), (1488, 1610), (0x0900, 0x097F), (0x2000, 0x206F),
    (0x4E00, 0x4E80), (0xAC00, 0xAC80), (0xFF00, 0xFFEF), (0x1F600, 0x1F64F), (0x20000, 0x20100), (0, 0xD7FF),
    (0xE000, 0x10FFFF),
]  # fmt: skip


def made(name: str) -> Tokenizer:
    if name == "qwen2":
        return qwen2_tokenizer()
    return make_tokenizer(name) if name in OURS else Tokenizer(backend(name))


def random_texts(number: int, *, alphabet: str | None = None) -> list[str]:
    """Texts of random characters of many scripts, with spaces and words between them; no lone surrogates."""
    draw = random.Random(number)

    def piece() -> str:
        if alphabet:
            return draw.choice(alphabet)
        return draw.choice([" ", "  ", " the", "\n", chr(draw.randint(*draw.choice(RANGES)))])

    return ["".join(piece() for _ in range(draw.randint(0, 60))) for _ in range(number)]


def compare(name: str, family: str, number: int, tmp_path) -> None:
    """Ids of a run's tokenizer, of its export's in transformers, of what that saves, and of that imported again."""
    ours = made(name)
    export_hugging_face(random_run(tmp_path / "run", random_config(family, 0), tokenizer=ours), tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs.save_pretrained(tmp_path / "out")
    import_model(tmp_path / "out", tmp_path / "again")
    again, _ = load_tokenizers(find_checkpoint(tmp_path / "again"))
    texts = random_texts(number, alphabet=ALPHABET if name == "char" else None)
    expected = [ids.tolist() for ids in ours.encode_batch(texts)]
    assert theirs(texts, add_special_tokens=False, verbose=False).input_ids == expected
    assert [ids.tolist() for ids in again.encode_batch(texts)] == expected
    assert theirs.eos_token_id == ours.end_of_text == again.end_of_text
    assert theirs.bos_token_id == ours.start_of_text == again.start_of_text


@pytest.mark.parametrize(
    ("name", "family"), [*((name, "llama") for name in NAMES), *(("bpe", family) for family in FIELDS)]
)
def test_ids_are_the_same(name, family, tmp_path):
    compare(name, family, 100, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ids_of_many_texts_are_the_same(name, tmp_path):
    compare(name, "llama", 10_000, tmp_path)


@pytest.mark.parametrize("kind", ["ours", "qwen2", "llama3"])
def test_chat_templates_go_out_and_in_again(tmp_path, kind):
    if kind == "ours":
        ours = make_tokenizer("bpe").with_chat_template()
    else:
        family = qwen2() if kind == "qwen2" else llama3()
        special = {"bos_token": family.bos, "eos_token": family.eos}
        ours = Tokenizer(family.backend, chat_template=ChatTemplate(family.template, special))
    export_hugging_face(random_run(tmp_path / "run", random_config("llama", 0), tokenizer=ours), tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [Message("system", "the mill"), Message("user", "The owl"), Message("assistant", "saw the fox")]
    plain = [message.to_dict() for message in messages]
    expected = ours.chat_template.encode(ours, messages)
    assert theirs.apply_chat_template(plain, add_generation_prompt=True, return_dict=False) == expected
    stops = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert stops == list(ours.chat_template.end_of_turn(ours))
    import_model(tmp_path / "out", tmp_path / "again")
    again, _ = load_tokenizers(find_checkpoint(tmp_path / "again"))
    assert again.chat_template.source == ours.chat_template.source
    assert again.chat_template.encode(again, messages) == expected
    assert again.chat_template.end_of_turn(again) == ours.chat_template.end_of_turn(ours)
