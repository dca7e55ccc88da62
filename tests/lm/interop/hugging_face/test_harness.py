"""Tasks for lm-evaluation-harness ask of each story what it says, and give the answer away by no place."""

import json
from collections import Counter

from tests.benchmarks.harness import CHOICES, HELD_OUT, write


def test_each_story_has_its_ending_among_others(tmp_path):
    write(tmp_path / "tasks")
    stories, questions = (
        [json.loads(line) for line in (tmp_path / "tasks" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("stories", "endings")
    )
    text = HELD_OUT.read_text()
    assert len(stories) == len(questions) == text.count("<|endoftext|>") + 1
    for story, question in zip(stories, questions, strict=True):
        assert story["text"] in text
        assert story["text"] == f"{question['story']}\n\n{question['endings'][question['answer']]}"
        assert len(question["endings"]) == CHOICES
    assert set(Counter(question["answer"] for question in questions).values()) == {len(questions) // CHOICES}


def test_descriptions_name_their_data(tmp_path):
    write(tmp_path)
    for name in ("stories", "endings"):
        assert f"test: {tmp_path / name}.jsonl" in (tmp_path / f"{name}.yaml").read_text()
