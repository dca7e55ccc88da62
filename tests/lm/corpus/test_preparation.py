"""What is made of the same inputs is made once, and what has its name is whole."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.corpus.manifest import Manifest
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.prepared_folder import Preparation, PreparedFolder, hash_inputs
from lm.corpus.shards import open_split
from lm.corpus.text_corpus import scan_corpus
from lm.errors import InputError
from lm.text.text_files import find_text_files
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written
from tests.lm.corpus.test_manifest import MADE
from tests.lm.full_disk import full_disk
from tests.lm.tokenizers_elsewhere import TEXT

WHOLE = DataConfig(validation="0")


def ids(prepared: PreparedFolder[Manifest]) -> list[int]:
    tokens = open_split(prepared.folder, "train")
    return tokens.read(0, len(tokens)).tolist()


def test_a_key_is_a_hash_of_all_inputs_and_the_version_of_their_list():
    assert hash_inputs("a", [None, 2]) == hashlib.sha256(b'[3, "a", [null, 2]]').hexdigest()


def made_once(folder: Path, write: Callable[[Path], Manifest]) -> PreparedFolder[Manifest]:
    return Preparation(MADE.key, Manifest.read, write).load_or_prepare(folder)


def test_of_two_processes_that_prepare_the_same_the_first_wins(tmp_path):
    def write(folder: Path, content: str) -> Manifest:
        (folder / "data").write_text(content)
        return MADE

    def slowly(folder: Path) -> Manifest:
        assert not made_once(tmp_path / "out", lambda other: write(other, "first")).reused
        return write(folder, "second")

    made_once(tmp_path / "out", slowly)
    assert (tmp_path / "out" / "data").read_text() == "first"
    assert made_once(tmp_path / "out", slowly).reused
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_was_made_of_other_inputs_is_made_again(tmp_path):
    made_once(tmp_path / "out", lambda _: dataclasses.replace(MADE, key="other"))
    found = made_once(tmp_path / "out", lambda _: MADE)
    assert not found.reused
    assert Manifest.read(tmp_path / "out") == MADE.with_checksums({})


class TestReuse:
    def test_same_inputs_are_found_whatever_the_names(self, tmp_path):
        tokenizer = byte_tokenizer()
        first = prepare(written(tmp_path, "some text"), tokenizer, DataConfig(), root=tmp_path / "cache")
        (tmp_path / "other.txt").write_text("some text")
        other = find_text_files([str(tmp_path / "other.txt")])
        again = prepare(other, tokenizer, DataConfig(validation="1/10"), root=tmp_path / "cache")
        assert (first.reused, again.reused) == (False, True)
        assert again.folder == first.folder
        assert again.manifest == first.manifest

    def test_other_inputs_are_not(self, gpt2, tmp_path):
        def run(text: str, tokenizer: Tokenizer, **config: str) -> Path:
            found = prepare(written(tmp_path, text), tokenizer, DataConfig(**config), root=tmp_path / "cache")
            assert not found.reused
            return found.folder

        folders = [
            run("some text", byte_tokenizer()),
            run("other text", byte_tokenizer()),
            run("some text", gpt2),
            run("some text", byte_tokenizer(), validation="0.2"),
            run("some text", byte_tokenizer(), separator="---"),
        ]
        assert len(set(folders)) == 5

    @pytest.mark.parametrize("victim", ["manifest.json", "train-00000.npy"])
    def test_an_incomplete_folder_is_made_again(self, victim, tmp_path):
        first = prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, root=tmp_path / "cache")
        (first.folder / victim).unlink()
        again = prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, root=tmp_path / "cache")
        assert not again.reused
        assert bytes(ids(again)[1:-1]) == b"some text"
        assert [path.name for path in again.folder.parent.iterdir()] == [again.folder.name]

    def test_nothing_half_made_is_left_where_it_fails(self, tmp_path):
        def fail(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, tmp_path / "out" / "a", progress=fail)
        assert list((tmp_path / "out").iterdir()) == []

    def test_what_a_killed_process_left_in_the_cache_goes(self, tmp_path):
        left = tmp_path / "cache" / "tokens" / ".0123.partial-4567"
        left.mkdir(parents=True)
        (left / "train-00000.npy").write_bytes(b"half")
        os.utime(left, (0, 0))
        made = prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, root=tmp_path / "cache")
        assert list(left.parent.iterdir()) == [made.folder]

    def test_a_named_folder_is_reused_or_kept(self, tmp_path):
        out = tmp_path / "out"
        found = written(tmp_path, "some text")
        assert not prepare(found, byte_tokenizer(), WHOLE, out).reused
        assert prepare(found, byte_tokenizer(), WHOLE, out).reused
        other = written(tmp_path, "other text")
        with pytest.raises(InputError, match="holds other tokens already"):
            prepare(other, byte_tokenizer(), WHOLE, out)
        assert bytes(ids(prepare(other, byte_tokenizer(), WHOLE, out, force=True))[1:-1]) == b"other text"

    def test_a_folder_with_something_else_is_never_replaced(self, tmp_path):
        out = tmp_path / "out"
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
        with pytest.raises(InputError, match="holds no prepared tokens"):
            prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, out, force=True)
        assert (out / "thesis.tex").read_text() == "precious"

    def test_a_checkpoint_is_something_else_too(self, tmp_path):
        """It has a manifest and a tokenizer, as prepared tokens have."""
        out = tmp_path / "out"
        out.mkdir()
        for name in ("manifest.json", "tokenizer.json", "model.safetensors"):
            (out / name).write_text("{}")
        with pytest.raises(InputError, match="holds no prepared tokens"):
            prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, out, force=True)
        (out / "model.safetensors").unlink()  # what is left may be damaged tokens, which --force replaces
        assert not prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, out, force=True).reused

    def test_a_link_to_an_empty_folder_stays_one(self, tmp_path):
        (tmp_path / "there").mkdir()
        (tmp_path / "out").symlink_to(tmp_path / "there")
        prepare(written(tmp_path, "some text"), byte_tokenizer(), WHOLE, tmp_path / "out")
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "there" / "manifest.json").is_file()
        assert not list(tmp_path.glob(".*"))

    def test_a_full_disk_is_told_of_by_file_and_leaves_nothing(self, tmp_path):
        found, tokenizer = written(tmp_path, "some text" * 10_000), byte_tokenizer()
        with full_disk(after=50_000), pytest.raises(OSError, match=r"File too large: '.*train-tokens\.npy'"):
            prepare(found, tokenizer, WHOLE, tmp_path / "out")
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]

    def test_a_corpus_that_changes_on_the_way_is_noticed(self, tmp_path):
        found = written(tmp_path, "some text")
        surveyed = scan_corpus(found, WHOLE)
        found[0].path.write_text("some longer text")
        with pytest.raises(InputError, match=r"corpus-0\.txt: the corpus changed"):
            prepare_corpus(surveyed, byte_tokenizer(), folder=tmp_path / "out")


@pytest.mark.parametrize("supervised", [False, True])
def test_all_is_on_the_disk_before_the_folder_has_its_name(tmp_path, disk, supervised):
    lines = (json.dumps({"text": str(number), "prompt": str(number), "completion": "b"}) for number in range(40))
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    found = find_text_files([str(tmp_path / "corpus.jsonl")], DataConfig(supervised=supervised))
    prepare(found, byte_tokenizer(), DataConfig(validation="0.1", supervised=supervised), tmp_path / "out")
    assert disk.synced_before("out") == {"out"} | {path.name for path in (tmp_path / "out").iterdir()}


def test_an_empty_folder_may_be_there_already(tmp_path):
    (tmp_path / "out").mkdir()
    made = prepare(written(tmp_path, TEXT), byte_tokenizer(), WHOLE, tmp_path / "out")
    assert not made.reused
    assert prepare(written(tmp_path, TEXT), byte_tokenizer(), WHOLE, tmp_path / "out").reused
