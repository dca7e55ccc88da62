"""Models of transformers become runs with the same logits and the same numbers, and hostile folders nothing at all."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import lm
from cli.main import run as command
from lm.checkpoint import load_model, load_weights
from lm.config.model import ModelConfig
from lm.errors import InputError
from lm.hardware import Hardware
from lm.interop.hugging_face.configuration import from_json
from lm.interop.hugging_face.exporting import export_hugging_face
from lm.interop.hugging_face.importing import import_model
from tests.lm.interop.hugging_face.models import FIELDS, VOCABULARY, ids, random_config, random_run
from tests.slow_cases import slow_after
from tests.tolerances import assert_close

HARDWARE = Hardware("cpu", "float32", 1)


def saved(tmp_path: Path, family: str, seed: int, *, shard: str = "5GB", dtype: torch.dtype = torch.float32) -> Path:
    """A random model as transformers itself saves it."""
    export_hugging_face(random_run(tmp_path / "made", random_config(family, seed)), tmp_path / "exported")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=dtype)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=shard)
    AutoTokenizer.from_pretrained(tmp_path / "exported").save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def tensors(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dictionary)
                value = file.get_tensor(name)
                found[name] = (value.dtype, tuple(value.shape), bytes(value.flatten().view(torch.uint8).numpy()))
    return found


@pytest.mark.parametrize("seed", slow_after(1, range(1, 14)))
@pytest.mark.parametrize("family", FIELDS)
def test_there_and_back_no_number_changes(family, seed, tmp_path):
    folder = saved(tmp_path, family, seed, shard="20KB")
    assert (folder / "model.safetensors.index.json").is_file()
    imported = import_model(folder, tmp_path / "run")
    assert imported.family.model_type == family
    ours, theirs = load_model(tmp_path / "run", HARDWARE).model, AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = ids(3, 24, seed=seed)
    with torch.no_grad():
        assert_close(ours(tokens), theirs(tokens).logits, model=ours)
        ours_nats, theirs_nats = (logits.log_softmax(-1) for logits in (ours(tokens), theirs(tokens).logits))
        assert_close(ours_nats, theirs_nats, model=ours)
    export_hugging_face(tmp_path / "run", tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(folder)


def test_an_imported_model_reads_line_ends_as_they_are(tmp_path):
    """As its own system does: perplexities stay comparable."""
    import_model(saved(tmp_path, "gpt2", 1), tmp_path / "run")
    (tmp_path / "text.txt").write_bytes(text := b"a line\r\nand another\r\n")
    assert lm.load(tmp_path / "run").perplexity(tmp_path / "text.txt").bytes == len(text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_type_of_the_numbers_stays(dtype, tmp_path):
    folder = saved(tmp_path, "llama", 3, dtype=dtype)
    import_model(folder, tmp_path / "run")
    assert {value.dtype for value in load_weights(tmp_path / "run").values()} == {dtype}
    export_hugging_face(tmp_path / "run", tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(folder)


def test_files_without_prefix_and_with_buffers_as_gpt2_was_published(tmp_path):
    folder = saved(tmp_path, "gpt2", 4)
    weights = load_file(folder / "model.safetensors")
    tied = json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    published = {name.removeprefix("transformer."): value for name, value in weights.items()}
    published |= {"h.0.attn.bias": torch.ones(1, 1, 8, 8).tril()}
    published |= {"lm_head.weight": weights["transformer.wte.weight"].clone()} if tied else {}
    save_file(published, folder / "model.safetensors")
    import_model(folder, tmp_path / "run")
    ours = load_model(tmp_path / "run", HARDWARE).model
    tokens = ids(2, 9)
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()(tokens).logits
        assert_close(ours(tokens), expected, model=ours)


def test_a_config_that_says_little_is_the_default_of_its_class(tmp_path):
    folder = saved(tmp_path, "gpt2", 4)
    small = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=24, n_positions=16, vocab_size=400, n_head=2))
    small.save_pretrained(folder)
    said = {"model_type": "gpt2", "n_layer": 1, "n_embd": 24, "n_positions": 16, "vocab_size": 400, "n_head": 2}
    (folder / "config.json").write_text(json.dumps(said))
    import_model(folder, tmp_path / "run")
    ours, tokens = load_model(tmp_path / "run", HARDWARE).model, ids(2, 9) % 400
    with torch.no_grad():
        assert_close(ours(tokens), small.eval()(tokens).logits, model=ours)


@pytest.mark.parametrize(
    ("values", "window"), [({"sliding_window": None}, None), ({"sliding_window": 5}, 5), ({}, 4096)]
)
def test_the_window_of_mistral(values, window, tmp_path):
    said = {"model_type": "mistral", **values}
    _, config = from_json(said, tmp_path / "config.json")
    assert (config.attention_window if config.attention == "window" else None) == window


@pytest.mark.parametrize("width", [1, 2, 16, 17])
def test_a_window_is_as_wide_in_transformers(width, tmp_path):
    """`sliding_window` counts the positions that a query sees, its own among them, however long the sequence is."""
    config = ModelConfig(
        vocab_size=VOCABULARY, context_length=64, d_model=16, n_layers=2, n_heads=2, d_ff=40, attention="window",
        attention_window=width,
    )  # fmt: skip
    export_hugging_face(random_run(tmp_path / "made", config), tmp_path / "exported")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert (theirs.config.model_type, theirs.config.sliding_window) == ("mistral", width)
    import_model(tmp_path / "exported", tmp_path / "run")
    ours, tokens = load_model(tmp_path / "run", HARDWARE).model, ids(1, 60)
    with torch.no_grad():
        assert_close(ours(tokens), theirs(tokens).logits, model=ours)


@pytest.mark.parametrize(
    ("values", "is_windowed"),
    [({}, False), ({"sliding_window": 5}, False), ({"use_sliding_window": True, "max_window_layers": 0}, True),
     ({"use_sliding_window": True, "max_window_layers": 40}, False),
     ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 32}, True),
     ({"use_sliding_window": True, "layer_types": ["full_attention"] * 32}, False)],
)  # fmt: skip
def test_the_window_of_qwen(values, is_windowed, tmp_path):
    _, config = from_json({"model_type": "qwen3", **values}, tmp_path / "config.json")
    assert (config.attention == "window") is is_windowed


@pytest.mark.parametrize(
    ("values", "named"),
    [({"max_window_layers": 3}, "max_window_layers 3"), ({"max_window_layers": "x"}, "max_window_layers 'x'"),
     ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types of different kinds"),
     ({"layer_types": ["linear_attention"]}, "layer_types of different kinds"),
     ({"max_window_layers": 0, "sliding_window": "wide"}, "attention_window must be an integer")],
)  # fmt: skip
def test_windows_in_some_layers_only_are_refused(values, named, tmp_path):
    with pytest.raises(InputError, match=named):
        from_json({"model_type": "qwen2", "use_sliding_window": True, **values}, tmp_path / "config.json")


@pytest.fixture(scope="module")
def saved_llama(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("saved"), "llama", 3)


@pytest.fixture
def llama(saved_llama, tmp_path) -> Path:
    return shutil.copytree(saved_llama, tmp_path / "theirs")


def changed(folder: Path, **values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


CONFIGS = [
    ({"num_hidden_layers": 9_999}, "num_hidden_layers is 9,999, but the weights are of"),
    ({"num_hidden_layers": 10**15}, "num_hidden_layers 1000000000000000"),
    ({"hidden_size": 2**30, "vocab_size": 2**30, "intermediate_size": 2**30, "head_dim": 2**30}, "too large"),
    ({"intermediate_size": 2**30}, r"gate_proj.weight is \(.*\), but by config.json it is \(1073741824, "),
    ({"vocab_size": 2**31}, r"embed_tokens.weight is .*, but by config.json"),
    ({"vocab_size": 7}, "has 300 tokens, but the model 7"),
    ({"model_type": "mamba"}, "model_type 'mamba' is not one of gpt2, gpt_neox"),
    ({"model_type": ["llama"]}, "model_type"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
    ({"auto_map": {"AutoModelForCausalLM": "modeling.Evil"}}, "auto_map"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"hidden_size": "64"}, "hidden_size '64'"), ({"hidden_size": True}, "hidden_size True"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps nan"), ({"num_attention_heads": -1}, "num_attention_heads -1"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not one of"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
    ({"rope_parameters": {"rope_type": "linear"}}, "linear needs a number as factor"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": "x"}}, "yarn needs a number as mscale"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate False"),
    ({"rope_parameters": [1]}, "must be an object of keys and values"),
    ({"rope_parameters": {"rope_type": ["x"]}}, "rope_type"),
    ({"rope_parameters": {"rope_theta": "x"}}, "rope_base must be a number"),
    ({"attention_bias": "yes"}, "attention_bias 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "named"), CONFIGS)
def test_a_config_that_ours_cannot_be_is_refused_by_its_key(values, named, llama, tmp_path):
    with pytest.raises(InputError, match=named) as raised:
        import_model(changed(llama, **values), tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def big_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10 * 1000**3) + b"{}")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def indexed(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    places = dict.fromkeys(load_file(folder.parent / "outside.safetensors"), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def with_tensor(folder: Path, name: str, value: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    weights = {key: tensor for key, tensor in {**weights, name: value}.items() if tensor is not None}
    save_file(weights, folder / "model.safetensors")


def in_shard_alone(folder: Path) -> None:
    indexed(folder, "one.safetensors")
    weights = load_file(folder.parent / "outside.safetensors")
    save_file({**weights, "extra": torch.ones(2)}, folder / "one.safetensors")


FOLDERS = {
    "a header of 10 GB": (big_header, "its header would have 10,000,000,000 bytes"),
    "a pickle": (pickled, "weights in a pickle, which could run any code, are not read"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    "an index that leads out": (lambda folder: indexed(folder, "../outside.safetensors"), "not a .safetensors file in"),
    "an index to the root": (lambda folder: indexed(folder, "/etc/passwd"), "not a .safetensors file in this folder"),
    "an index to nothing": (lambda folder: indexed(folder, "gone.safetensors"), "gone.safetensors: missing"),
    "an index of no tensors": (
        lambda folder: (
            (folder / "model.safetensors").unlink(),
            (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}'),
        ),
        "does not say which tensors",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json; make one"),
    "a config without end": (lambda folder: os.truncate(folder / "config.json", 10**10), "has 10,000,000,000 bytes"),
    "a tokenizer without end": (lambda folder: os.truncate(folder / "tokenizer.json", 10**10), "10,000,000,000 bytes"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "a config of a list": (lambda folder: (folder / "config.json").write_text("[]"), "an object of keys and values"),
    "a config that is no JSON": (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
    "a tensor too few": (
        lambda folder: with_tensor(folder, "model.norm.weight", None), "its weights have no model.norm.weight"
    ),
    "a tensor too many": (
        lambda folder: with_tensor(folder, "model.layers.0.self_attn.sinks", torch.ones(2)),
        "its weights have model.layers.0.self_attn.sinks, which the model in config.json does not have",
    ),
    "a tensor too many, which the index leaves out": (in_shard_alone, "its weights have extra, which the model"),
    "an output layer that differs": (
        lambda folder: with_tensor(
            changed(folder, tie_word_embeddings=True), "lm_head.weight",
            load_file(folder / "model.safetensors")["model.embed_tokens.weight"] + 1,
        ),
        "lm_head.weight differs from model.embed_tokens.weight, but by config.json they are one tensor",
    ),
    "a tensor of another shape": (
        lambda folder: with_tensor(folder, "model.norm.weight", torch.ones(3)), r"model.norm.weight is \(3,\), but by"
    ),
    "quantized": (
        lambda folder: with_tensor(folder, "model.norm.weight", load_file(folder / "model.safetensors")[
            "model.norm.weight"].to(torch.int8)), "tensors of the dtype I8"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "named"), FOLDERS.values(), ids=FOLDERS)
def test_a_hostile_folder_is_refused_in_a_line(harm, named, llama, tmp_path, capsys):
    harm(llama)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert command(["import", str(llama), "-o", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    with pytest.raises(InputError, match=named):
        import_model(llama, tmp_path / "run")
    assert told.startswith("lm: ")
    assert told.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
