"""Models of transformers become runs with the same logits and the same numbers, and hostile folders nothing at all."""

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from cli.main import run as command
from lm.api import export
from lm.checkpoint import load_model, load_weights
from lm.config.model import ModelConfig
from lm.errors import InputError
from lm.hardware import Hardware
from lm.interop.conversion import from_json
from lm.interop.families import QWEN3
from lm.interop.hugging_face import import_model
from tests.lm.interop.hugging_face.models import FIELDS, VOCABULARY, ids, random_config, random_run
from tests.slow_cases import slow_after
from tests.tolerances import assert_close

HARDWARE = Hardware("cpu", "float32", 1)
QWEN = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **dict.fromkeys(QWEN3.sizes, 32)}


def saved(tmp_path: Path, family: str, seed: int, *, shard: str = "5GB", dtype: torch.dtype = torch.float32) -> Path:
    """A random model as transformers itself saves it."""
    export(random_run(tmp_path / "made", random_config(family, seed)), tmp_path / "exported")
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
    import_model(folder, tmp_path / "run")
    ours, theirs = load_model(tmp_path / "run", HARDWARE).model, AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = ids(3, 24, seed=seed)
    with torch.no_grad():
        assert_close(ours(tokens), theirs(tokens).logits, model=ours)
        ours_nats, theirs_nats = (logits.log_softmax(-1) for logits in (ours(tokens), theirs(tokens).logits))
        assert_close(ours_nats, theirs_nats, model=ours)
    export(tmp_path / "run", tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_type_of_the_numbers_stays(dtype, tmp_path):
    folder = saved(tmp_path, "llama", 3, dtype=dtype)
    import_model(folder, tmp_path / "run")
    assert {value.dtype for value in load_weights(tmp_path / "run").values()} == {dtype}
    export(tmp_path / "run", tmp_path / "again")
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


@pytest.mark.parametrize("width", [1, 2, 16, 17])
def test_a_window_is_as_wide_in_transformers(width, tmp_path):
    """`sliding_window` counts the positions that a query sees, its own among them, however long the sequence is."""
    config = ModelConfig(
        vocab_size=VOCABULARY, context_length=64, d_model=16, n_layers=2, n_heads=2, d_ff=40, attention="window",
        attention_window=width,
    )  # fmt: skip
    export(random_run(tmp_path / "made", config), tmp_path / "exported")
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
    _, config = from_json({**QWEN, **values}, tmp_path / "config.json")
    assert (config.attention == "window") is is_windowed


@pytest.fixture
def llama(tmp_path) -> Path:
    return saved(tmp_path, "llama", 3)


def changed(folder: Path, **values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


def big_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10 * 1000**3) + b"{}")


def indexed(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    places = dict.fromkeys(load_file(folder.parent / "outside.safetensors"), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def with_tensor(folder: Path, name: str, value: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    weights = {key: tensor for key, tensor in {**weights, name: value}.items() if tensor is not None}
    save_file(weights, folder / "model.safetensors")


CONFIGS = [
    ({"num_hidden_layers": 9_999}, "more layers"), ({"num_hidden_layers": 10**15}, "n_layers"),
    ({"vocab_size": 2**31 - 1}, r"embed_tokens.weight is .*, but by config.json"),
    ({"vocab_size": 7}, "has 300 tokens, but the model 7"), ({"model_type": "mamba"}, "model_type 'mamba'"),
    ({"model_type": ["llama"]}, "model_type"), ({"architectures": ["LlamaModel"]}, "architectures"),
    ({"auto_map": {"AutoModelForCausalLM": "modeling.Evil"}}, "auto_map"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"), ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"hidden_size": "64"}, "d_model"), ({"hidden_size": True}, "d_model"), ({"hidden_size": None}, "config.json"),
    ({"rms_norm_eps": float("nan")}, "norm_eps"), ({"num_attention_heads": -1}, "n_heads"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
    ({"rope_parameters": {"rope_type": "linear"}}, "factor None"),
    ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear"}}, "factor None"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale 1.0"),
    ({"rope_parameters": [1]}, "rope_scaling"), ({"rope_parameters": {"rope_type": ["x"]}}, "rope_type"),
    ({"rope_parameters": {"rope_theta": "x"}}, "rope_base"), ({"attention_bias": "yes"}, "attention_bias 'yes'"),
]  # fmt: skip


def test_a_config_that_ours_cannot_be_is_refused_by_its_key(llama, tmp_path):
    config = json.loads((llama / "config.json").read_text())
    for values, named in CONFIGS:
        (llama / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=named) as raised:
            import_model(changed(llama, **values), tmp_path / "run")
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "run").exists()


FOLDERS = {
    "a header of 10 GB": (big_header, "header too large"),
    "a pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "has no model.safetensors"
    ),
    "an index that leads out": (lambda folder: indexed(folder, "../outside.safetensors"), "safetensors files in the"),
    "an index of no tensors": (
        lambda folder: (
            (folder / "model.safetensors").unlink(),
            (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}'),
        ),
        "does not say which tensors",
    ),
    "sliding layers in words": (
        lambda folder: changed(
            folder, model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=True, sliding_window=4,
            max_window_layers="two",
        ),
        "not a model that can be read",
    ),
    "a config of a list": (lambda folder: (folder / "config.json").write_text("[]"), "has no model_type"),
    "a tensor too few": (lambda folder: with_tensor(folder, "model.norm.weight", None), "model.norm.weight is missing"),
    "a tensor too many": (
        lambda folder: with_tensor(folder, "model.layers.0.self_attn.sinks", torch.ones(2)),
        r"model.layers.0.self_attn.sinks is \(2,\), but by config.json it is missing",
    ),
    "an output layer that differs": (
        lambda folder: with_tensor(
            changed(folder, tie_word_embeddings=True), "lm_head.weight",
            load_file(folder / "model.safetensors")["model.embed_tokens.weight"] + 1,
        ),
        "differs from a copy, but model.embed_tokens.weight",
    ),
    "a tensor of another shape": (
        lambda folder: with_tensor(folder, "model.norm.weight", torch.ones(3)), r"model.norm.weight is \(3,\), but by"
    ),
    "quantized": (
        lambda folder: with_tensor(folder, "model.norm.weight", load_file(folder / "model.safetensors")[
            "model.norm.weight"].to(torch.int8)), "torch.int8; quantized"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "named"), FOLDERS.values(), ids=FOLDERS)
def test_a_hostile_folder_is_refused_in_a_line(harm, named, llama, tmp_path, capsys):
    harm(llama)
    assert command(["import", str(llama), "-o", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    assert re.fullmatch(f"lm: .*({named}).*\n", told)
    assert not (tmp_path / "run").exists()
