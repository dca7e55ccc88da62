"""Vocabularies of SentencePiece have the ids that MarianTokenizer gives, out and in."""

import itertools
import json
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from lm.checkpoint import load_tokenizers
from lm.interop.hugging_face import import_model
from lm.run_folder import find_checkpoint
from tests.lm.interop.hugging_face.test_tokenizers import random_texts

SIDES = {
    "source": "The owl saw the fox by the mill. The kite was red, and the fox ran to the old mill.",
    "target": "The Eule sah by the Mühle a fox. Der Drachen was rot, und the kite owl ran old mill.",
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def write_pieces(folder: Path, side: str, **settings) -> None:
    """As Marian's: trained on a few sentences, all of whose characters are pieces."""
    words = SIDES[side].split()
    lines = [" ".join(words[number % len(words) :] + words[: number % len(words)]) for number in range(60)]
    options = {"vocab_size": 70, "model_type": "unigram", "hard_vocab_limit": False, "minloglevel": 2, **settings}
    with (folder / f"{side}.spm").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, bos_id=-1, eos_id=0, unk_id=1, **options
        )


def folder_of(tmp_path, languages: tuple[str, ...] = (), **settings) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    found = []
    for side in SIDES:
        write_pieces(folder, side, **settings)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        found += [pieces.id_to_piece(number) for number in range(len(pieces))]
    names = list(dict.fromkeys(["</s>", "<unk>", *languages, *sorted(set(found)), "<pad>"]))
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    last = len(names) - 1
    config = MarianConfig(
        vocab_size=len(names), d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=32,
        pad_token_id=last, decoder_start_token_id=last, eos_token_id=0,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(folder)
    return folder


def sides(tmp_path, folder):
    """Both tokenizers of the run that a folder becomes, and theirs."""
    import_model(folder, tmp_path / "run")
    target, source = load_tokenizers(find_checkpoint(tmp_path / "run"))
    return source, target, MarianTokenizer.from_pretrained(folder)


def is_otherwise(text: str) -> bool:
    """Whether a text has the sign that SentencePiece has for a space, or marks that the tokenizers library loses.

    These follow a character that stands for others, or another mark.
    """
    pairs = itertools.pairwise(text)
    return "\u2581" in text or any(_is_mark(mark) and (_is_mark(before) or _stands(before)) for before, mark in pairs)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _stands(character: str) -> bool:
    return unicodedata.normalize("NFKC", character) != character


def compare(tmp_path, number):
    source, target, theirs = sides(tmp_path, folder_of(tmp_path))
    known = "The owl saw kite red, ran to old mill. "
    texts = [*random_texts(number), *random_texts(number, alphabet=known), *SIDES["source"].split(". ")]
    texts = [text for text in texts if not is_otherwise(text)]
    assert [row.tolist() for row in source.encode_batch(texts)] == [ids[:-1] for ids in theirs(texts).input_ids]
    expected = [ids[:-1] for ids in theirs(text_target=texts).input_ids]
    assert [row.tolist() for row in target.encode_batch(texts)] == expected
    for ids in expected:
        if theirs.unk_token_id not in ids:
            assert target.decode(ids).strip() == theirs.decode(ids)


def test_ids_and_texts_are_theirs(tmp_path):
    compare(tmp_path, 300)


def test_characters_of_the_other_side_are_its_tokens_where_they_stand_alone(tmp_path):
    """As SentencePiece gives what it does not know in one piece, and Marian looks that up."""
    source, _, theirs = sides(tmp_path, folder_of(tmp_path))
    texts = ["the müll", "ü", "üü ü", "żü", "Mühle", "ü the ü."]
    found = [row.tolist() for row in source.encode_batch(texts)]
    assert found == [ids[:-1] for ids in theirs(texts).input_ids]
    assert source.decode(found[0]) == "the müll"


def test_a_language_is_asked_for_as_of_our_own_runs(tmp_path):
    source, _, theirs = sides(tmp_path, folder_of(tmp_path, languages=(">>deu<<", ">>fra<<")))
    assert source.special_tokens["<2fra>"] == theirs.convert_tokens_to_ids(">>fra<<")
    assert theirs(">>fra<< the owl").input_ids[0] == source.special_tokens["<2fra>"]
