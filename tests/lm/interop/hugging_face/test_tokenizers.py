"""Tokenizers give the same ids here and in transformers, out and in again, for texts of any characters."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lm.api import export
from lm.checkpoint import load_tokenizers
from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.config.run_config import HardwareConfig
from lm.corpus.encode import encode_prompt
from lm.decoding.generator import Generator
from lm.engine import load_for_decoding
from lm.interop.hugging_face import import_model
from lm.run_folder import find_checkpoint
from lm.text import Part
from lm.tokenizer import Tokenizer
from lm.tokenizer.chat_template import ChatTemplate, SpecialTokenFrame, build_text_frame
from tests.cli.small_runs import make_tokenizer
from tests.lm.chat_families import llama3
from tests.lm.interop.hugging_face.models import VOCABULARY, qwen2_tokenizer, random_config, random_run
from tests.lm.tokenizers_elsewhere import MADE, backend, gpt2_like

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
    export(random_run(tmp_path / "run", random_config(family, 0), tokenizer=ours), tmp_path / "out")
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
    ("name", "family"), [*((name, "llama") for name in NAMES), ("bpe", "gpt2"), ("qwen2", "qwen2")]
)
def test_ids_are_the_same(name, family, tmp_path):
    compare(name, family, 100, tmp_path)


def write(folder: Path, name: str, **values: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_special_tokens_are_those_that_the_files_state(tmp_path):
    """Ends of both files, whatever their names are; texts end where transformers ends them, out and in again."""
    exported, run = tmp_path / "exported", tmp_path / "run"
    tokenizer = gpt2_like()
    tokenizer.add_special_tokens(["<doc>", "<fin>", "<blank>"])
    made = random_run(tmp_path / "made", random_config("llama", 0), tokenizer=Tokenizer(tokenizer))
    export(made, exported)
    prompt, settings = torch.tensor([[5, 6, 7]]), {"max_new_tokens": 12, "do_sample": False}
    free = AutoModelForCausalLM.from_pretrained(exported).generate(prompt, eos_token_id=None, **settings)[0].tolist()
    start, end, blank = (tokenizer.token_to_id(name) for name in ("<doc>", "<fin>", "<blank>"))
    stop = next(token for token in free[6:] if token not in free[:6])  # a token like others, but for the files
    write(exported, "config.json", bos_token_id=start, eos_token_id=end, pad_token_id=blank)
    write(exported, "generation_config.json", bos_token_id=start, eos_token_id=[stop, end], pad_token_id=blank)
    write(exported, "tokenizer_config.json", bos_token="<doc>", eos_token="<fin>", pad_token="<blank>")
    theirs = AutoModelForCausalLM.from_pretrained(exported)
    expected = theirs.generate(prompt, **settings)[0].tolist()
    assert expected == free[: free.index(stop) + 1]
    import_model(exported, run)
    loaded = load_for_decoding(run, HardwareConfig())
    ours = Generator(loaded.model, loaded.tokenizer, SamplingConfig(temperature=0, max_tokens=12))
    (sample,) = ours.samples(prompt[0].tolist())
    assert [*prompt[0].tolist(), *sample.tokens] == expected
    assert sample.finish_reason == "end_of_text"
    assert build_text_frame(loaded.tokenizer) == SpecialTokenFrame((start,), (end,))
    export(run, tmp_path / "again")
    again = GenerationConfig.from_pretrained(tmp_path / "again")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert (again.bos_token_id, set(again.eos_token_id), again.pad_token_id) == (start, {end, stop}, blank)
    assert (tokens.bos_token, tokens.eos_token, tokens.pad_token) == ("<doc>", "<fin>", "<blank>")
    import_model(tmp_path / "again", tmp_path / "third")
    assert load_tokenizers(find_checkpoint(tmp_path / "third"))[0].sha256 == loaded.tokenizer.sha256


@pytest.mark.parametrize(
    ("config", "generation", "ends"), [(9, [8, 9], (9, 8)), (9, [8, 7], (8, 7)), ([8, 9], None, (8, 9)), (9, 8, (8,))]
)
def test_ends_are_those_of_the_generation_config_else_of_the_config(config, generation, ends, tmp_path):
    made = random_run(tmp_path / "made", random_config("llama", 0), tokenizer=make_tokenizer("bpe"))
    export(made, tmp_path / "out")
    write(tmp_path / "out", "config.json", eos_token_id=config)
    write(tmp_path / "out", "generation_config.json", eos_token_id=generation)
    import_model(tmp_path / "out", tmp_path / "run")
    assert load_tokenizers(find_checkpoint(tmp_path / "run"))[0].ends == ends


def test_special_tokens_of_tokenizer_config_count_where_others_state_none(tmp_path):
    """As for encoders, of which no other file states them."""
    exported = tmp_path / "exported"
    tokenizer = gpt2_like()
    tokenizer.add_special_tokens(["<doc>", "<fin>", "<gap>", "[MASK]"])
    config = ModelConfig(
        vocab_size=VOCABULARY, d_model=16, n_layers=1, n_heads=2, context_length=32, objective="masked",
    )  # fmt: skip
    export(random_run(tmp_path / "made", config, tokenizer=Tokenizer(tokenizer)), exported)
    write(exported, "config.json", bos_token_id=None, eos_token_id=None)
    write(exported, "tokenizer_config.json", cls_token="<doc>", sep_token={"content": "<fin>"}, mask_token="<gap>")
    import_model(exported, tmp_path / "run")
    ours, _ = load_tokenizers(find_checkpoint(tmp_path / "run"))
    found = [ours.token(index) for index in (ours.start_of_text, ours.end_of_text, ours.mask)]
    assert found == ["<doc>", "<fin>", "<gap>"]


@pytest.mark.parametrize("kind", ["ours", "llama3"])
def test_chat_templates_go_out_and_in_again(tmp_path, kind):
    if kind == "ours":
        ours = make_tokenizer("bpe").with_chat_template()
    else:
        family = llama3()
        special = {"bos_token": family.bos, "eos_token": family.eos}
        ours = Tokenizer(family.backend, chat_template=ChatTemplate(family.template, special))
    export(random_run(tmp_path / "run", random_config("llama", 0), tokenizer=ours), tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [Part("system", "the mill"), Part("user", "The owl")]
    plain = [message.to_message() for message in messages]
    expected = encode_prompt(messages, ours)
    assert theirs.apply_chat_template(plain, add_generation_prompt=True, return_dict=False) == expected
    assert (theirs.padding_side, theirs.pad_token_id) == ("left", ours.end_of_text)
    stops = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert stops == list(ours.stop_ids)
    import_model(tmp_path / "out", tmp_path / "again")
    again, _ = load_tokenizers(find_checkpoint(tmp_path / "again"))
    assert again.chat_template.source == ours.chat_template.source
    assert encode_prompt(messages, again) == expected
    assert again.stop_ids == ours.stop_ids
