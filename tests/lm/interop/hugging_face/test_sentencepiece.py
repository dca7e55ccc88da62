"""Vocabularies of SentencePiece have the ids that MarianTokenizer gives, out and in."""

import contextlib
import itertools
import json
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, MarianTokenizer

from cli.main import run
from lm.checkpoint import load_tokenizers
from lm.errors import InputError
from lm.interop.hugging_face.exporting import export_hugging_face
from lm.interop.hugging_face.importing import import_model
from lm.interop.hugging_face.sentencepiece import read_model
from lm.run_folder import find_checkpoint, load_config
from tests.cli.small_runs import make_tokenizer
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


@pytest.mark.slow
def test_ids_and_texts_of_many_are_theirs(tmp_path):
    compare(tmp_path, 10_000)


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


def test_both_sides_share_their_ids(tmp_path):
    """Which vocabularies that were trained apart do not."""
    source, target, _ = sides(tmp_path, folder_of(tmp_path))
    assert source.has_same_ids(target)
    assert not source.has_same_ids(make_tokenizer("bpe"))


def test_a_run_with_both_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    import_model(folder_of(tmp_path), tmp_path / "run")
    for side, text in SIDES.items():
        (tmp_path / f"{side}.txt").write_text("\n".join([*text.split()[:16], text] * 4) + "\n")
    files = ["--source", str(tmp_path / "source.txt"), "--target", str(tmp_path / "target.txt")]
    short = [
        "--steps",
        "2",
        "--set",
        "parallel.bpe_dropout=0",
        "--from",
        str(tmp_path / "run"),
        "-o",
        str(tmp_path / "tuned"),
    ]
    assert run(["train", *files, *short]) == 0
    assert load_config(find_checkpoint(tmp_path / "tuned")).model.source_vocab_size is None
    export_hugging_face(tmp_path / "tuned", tmp_path / "out")
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"), MarianMTModel)


def test_the_tokenizer_of_the_sources_goes_out_again(tmp_path):
    """It knows the names of all tokens, so translations can be read with it."""
    source, target, _ = sides(tmp_path, folder_of(tmp_path))
    export_hugging_face(tmp_path / "run", tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("the owl ran.").input_ids == [*source.encode("the owl ran."), source.end_of_text]
    ids = target.encode("Die Mühle sah rot")
    assert theirs.decode(ids) == target.decode(ids)


def test_nothing_between_words_and_other_kinds_of_rules(tmp_path):
    folder = folder_of(tmp_path, add_dummy_prefix=False, normalization_rule_name="identity")
    source, _, theirs = sides(tmp_path, folder)
    texts = ["the owl", "  the   owl ran ", "kite,red"]
    assert [row.tolist() for row in source.encode_batch(texts)] == [ids[:-1] for ids in theirs(texts).input_ids]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "bpe"}, r"source\.spm: is not a unigram model"),
        ({"user_defined_symbols": "owl"}, r"source\.spm: has pieces of unsupported kinds"),
        ({"treat_whitespace_as_suffix": True}, r"source\.spm: is not a unigram model"),
    ],
)
def test_other_rules_are_refused_by_their_file(settings, message, tmp_path):
    folder = folder_of(tmp_path, **settings)
    with pytest.raises(InputError, match=message):
        import_model(folder, tmp_path / "run")


def test_damaged_files_are_refused(tmp_path):
    folder = folder_of(tmp_path)
    whole = (folder / "source.spm").read_bytes()
    for number in range(0, len(whole), 997):
        (folder / "source.spm").write_bytes(whole[:number] + bytes([whole[number] ^ 255]) + whole[number + 1 :])
        with contextlib.suppress(InputError):  # nothing else may be raised
            read_model(folder / "source.spm")
    (folder / "source.spm").write_bytes(b"\xff" * 100)
    with pytest.raises(InputError, match=r"source\.spm: not a readable SentencePiece model"):
        import_model(folder, tmp_path / "run")
    (folder / "source.spm").write_bytes(whole)
    (folder / "vocab.json").write_text('{"a": 0, "b": 0}')
    with pytest.raises(InputError, match=r"vocab\.json: is not a mapping"):
        import_model(folder, tmp_path / "run")
    (folder / "target.spm").unlink()
    with pytest.raises(InputError, match=r"target\.spm: missing"):
        import_model(folder, tmp_path / "run")
