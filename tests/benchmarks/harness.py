"""Tasks for EleutherAI's lm-evaluation-harness of held-out stories: `python -m tests.benchmarks.harness FOLDER`.

stories    the likelihood of each story, for the perplexities that `lm perplexity` has too
endings    which of four last paragraphs belongs to a story, of which three are the next stories' in the file

docs/how-to/exchange.md says how they are run.
"""

import argparse
import json
from pathlib import Path

HELD_OUT = Path(__file__).parents[2] / "corpora" / "stories" / "heldout.txt"
CHOICES = 4
_TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
"""
_STORIES = """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""
_ENDINGS = """\
output_type: multiple_choice
doc_to_text: "<|endoftext|>{{story}}"
doc_to_choice: "{{endings}}"
doc_to_target: "{{answer}}"
target_delimiter: "\\n\\n"
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def main() -> None:
    """Write both tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


def write(folder: Path) -> None:
    """Put data and descriptions of both tasks into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    stories = HELD_OUT.read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    stories = [story.strip("\n") for story in stories]
    _write_task(folder, "stories", [{"text": story} for story in stories], _STORIES)
    _write_task(folder, "endings", endings(stories), _ENDINGS)


def endings(stories: list[str]) -> list[dict[str, object]]:
    """A question for each story; the answer stands at each place equally often."""
    parts = [story.rpartition("\n\n") for story in stories]
    questions = []
    for number, (beginning, _, _) in enumerate(parts):
        answer = number % CHOICES
        others = [(number + (place - answer) % CHOICES) % len(parts) for place in range(CHOICES)]
        choices = [parts[other][2] for other in others]
        questions.append({"story": beginning, "endings": choices, "answer": answer})
    return questions


def _write_task(folder: Path, name: str, rows: list[dict[str, object]], description: str) -> None:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    (folder / f"{name}.yaml").write_text(_TASK.format(name=name, file=file) + description, encoding="utf-8")


if __name__ == "__main__":
    main()
