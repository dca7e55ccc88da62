"""A run exported to llama.cpp or CTranslate2, beside ours: the same continuations, or the same translations.

    python -m tests.benchmarks.exports RUN TEXT --to gguf [--number 50] [--tokens 64] [--type float32]
    python -m tests.benchmarks.exports RUN TEXT --to ctranslate2 --number 200
    python -m tests.benchmarks.exports RUN SOURCE --to ctranslate2 --number 500

Prompts are the beginnings of random lines of TEXT, after the token that starts a text. The other system continues each
greedily, in float32 with what it remembers; ours reads the result at once and says at each place how far the token that
was chosen is below its best. Where the two best are further apart than 1e-3 the choice must be the same. Of a
translation run the lines of SOURCE are translated with a beam of 5 by both. `--to gguf` needs llama-cpp-python.
"""

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lm.checkpoint import LoadedModel, load_model
from lm.config.decoding import TranslationConfig
from lm.config.export import ExportConfig
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.hardware import Hardware
from lm.interop.exporting import export_run
from lm.text.decode import read_file_lines
from lm.tokenizer.special_tokens import build_text_frame

APART = 1e-3
LONGEST_PROMPT, BEAM = 12, 5


def prompts(loaded: LoadedModel, text: Path, number: int) -> list[list[int]]:
    """Beginnings of random lines, as ids."""
    draw = random.Random(0)
    lines = draw.sample([line for line in read_file_lines(text) if line.strip()], number)
    before = build_text_frame(loaded.tokenizer).before
    return [[*before, *loaded.tokenizer.encode(line)[: draw.randint(1, LONGEST_PROMPT)]] for line in lines]


def by_llama_cpp(file: Path, starts: list[list[int]], number: int) -> list[list[int]]:
    """Greedy continuations."""
    from tests.lm.interop.gguf.llama_cpp_models import greedy, loaded

    model = loaded(file, context=max(map(len, starts)) + number)
    return [greedy(model, start, number) for start in starts]


def by_ctranslate2(folder: Path, loaded: LoadedModel, starts: list[list[int]], number: int) -> list[list[int]]:
    """The same; they end where a text ends."""
    import ctranslate2

    generator = ctranslate2.Generator(str(folder), compute_type="float32", intra_threads=1)
    spelled = [[loaded.tokenizer.token(index) for index in start] for start in starts]
    results = generator.generate_batch(spelled, max_length=number, include_prompt_in_result=False)
    return [result.sequences_ids[0] for result in results]


@torch.inference_mode()
def compare(loaded: LoadedModel, starts: list[list[int]], continued: list[list[int]]) -> None:
    """Print how many continuations are ours at each place, and how far the others are from it."""
    equal, places, wrong, farthest = 0, 0, 0, 0.0
    for start, chosen in zip(starts, continued, strict=True):
        seen = loaded.model(torch.tensor([[*start, *chosen]]))[0, len(start) - 1 : -1].numpy()
        best, second = np.sort(seen, axis=1)[:, :-3:-1].T
        taken = seen[np.arange(len(chosen)), chosen]
        equal += bool((taken == best).all())
        places += len(chosen)
        wrong += int(((taken < best) & (best - second > APART)).sum())
        farthest = max(farthest, float((best - taken).max(initial=0.0)))
    print(f"{equal} of {len(starts)} continuations ({places:,} tokens) are ours in every token")
    print(
        f"{wrong} tokens differ where the two best logits are over {APART} apart; the farthest is {farthest:.2g} below"
    )


def compare_translations(loaded: LoadedModel, folder: Path, sources: Sequence[str]) -> None:
    """Print how many translations are equal."""
    import ctranslate2

    model = TranslationModel.from_loaded(loaded)
    reader, writer = model.source_tokenizer, model.tokenizer
    ours = [one.translations[0].text for one in Translator([model], TranslationConfig(beam=BEAM)).translate(sources)]
    spelled = [[reader.token(index) for index in reader.encode(source.strip())] for source in sources]
    results = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1).translate_batch(
        spelled, beam_size=BEAM, min_decoding_length=0, max_batch_size=32
    )
    numbers = {writer.token(index): index for index in range(writer.vocab_size)}
    theirs = [writer.decode([numbers[token] for token in result.hypotheses[0]]) for result in results]
    equal = sum(mine == other for mine, other in zip(ours, theirs, strict=True))
    print(f"{equal} of {len(ours)} translations are equal ({100 * equal / len(ours):.1f}%)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--to", choices=["gguf", "ctranslate2"], required=True)
    parser.add_argument("--type")
    for name, default in (("number", 50), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model(arguments.run, Hardware("cpu", "float32", 1))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        print(export_run(arguments.run, out, ExportConfig(to=arguments.to, type=arguments.type))["model"])
        if loaded.model.config.translates:
            lines = [line for line in read_file_lines(arguments.text) if line.strip()][: arguments.number]
            compare_translations(loaded, out, lines)
            return
        starts = prompts(loaded, arguments.text, arguments.number)
        if arguments.to == "gguf":
            continued = by_llama_cpp(out, starts, arguments.tokens)
        else:
            continued = by_ctranslate2(out, loaded, starts, arguments.tokens)
        compare(loaded, starts, continued)


if __name__ == "__main__":
    main()
