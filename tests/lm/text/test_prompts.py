import json

from lm.text.find import find_text_files
from lm.text.text_file import Prompt, read_prompts


def read(path):
    (file,) = find_text_files([str(path)])
    return list(read_prompts(file))


def test_each_line_is_a_prompt_and_an_empty_line_an_empty_one(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffOne\r\n\n  two \nthree".encode())
    assert [(prompt.number, prompt.text) for prompt in read(path)] == [(0, "One"), (1, ""), (2, "  two "), (3, "three")]
    assert read(path)[2].where == f"{path}: line 3"


def test_objects_may_have_a_seed_and_a_length_of_their_own(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a\nb", "seed": 3, "max_tokens": 7, "id": "x"}, {"text": "c"}, {"prompt": "", "seed": None}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert read(path) == [
        Prompt(0, "a\nb", f"{path}: line 1", 3, 7),
        Prompt(1, "c", f"{path}: line 3"),
        Prompt(2, "", f"{path}: line 5"),
    ]


def test_equal_prompts_are_counted(tmp_path):
    (tmp_path / "prompts.txt").write_text("a\nb\na\n\na\n\n")
    assert [prompt.repeat for prompt in read(tmp_path / "prompts.txt")] == [0, 0, 1, 0, 2, 1]
