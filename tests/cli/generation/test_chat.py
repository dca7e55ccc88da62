"""`lm chat`: turns, commands and the context."""

import contextlib
import json
import re
import signal
import sys
import time
from subprocess import PIPE

import pytest

import lm
from cli.generation.chat_session import INTRODUCTION
from cli.main import run
from lm.checkpoint import load_model
from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.decoding.chat import Chat
from lm.decoding.generator import Generator
from lm.decoding.session import DecodeSession
from lm.errors import InputError, UsageError
from lm.hardware import select_inference_hardware
from lm.text.conversations import Message
from tests.cli.generation.pseudo_terminal import Terminal
from tests.cli.small_runs import make_run, make_tokenizer
from tests.forked import start

SHAPE = ["--d-model", "32", "--n-layers", "1", "--n-heads", "2", "--context", "128", "--kind", "byte"]
GREEDY = ("--greedy", "--max-tokens", 6)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """A run trained on conversations."""
    folder = tmp_path_factory.mktemp("chats")
    turns = [{"role": "user", "content": "The owl"}, {"role": "assistant", "content": "It sat."}]
    (folder / "chats.jsonl").write_text((json.dumps({"messages": turns * 2}) + "\n") * 20)
    command = ["train", str(folder / "chats.jsonl"), "-o", str(folder / "run"), "--steps", "80", "--validation", "0"]
    assert run([*command, "--learning-rate", "0.01", *SHAPE]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("base") / "run")


@pytest.fixture
def session(capsys, monkeypatch, tmp_path):
    """Runs a chat on lines of input, without a terminal; returns its output and notes."""

    def talk(folder, *lines, flags=GREEDY, code=0) -> tuple[str, str]:
        file = tmp_path / "lines"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        with file.open(encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert run(["chat", str(folder), *map(str, flags)]) == code
        output = capsys.readouterr()
        return output.out, output.err

    return talk


def open_chat(folder, *messages, **settings) -> Chat:
    hardware = select_inference_hardware(HardwareConfig(dtype="float32"))
    loaded = load_model(folder, hardware)
    config = SamplingConfig(**{"greedy": True, "max_tokens": 6, "logit_bias": ("<|end|>=-inf",), **settings})
    return Chat(Generator(loaded.model, loaded.tokenizer, config), messages=messages)


def say(chat: Chat, text: str) -> str:
    return "".join(event.text for event in chat.reply(text))


def read_saved(path) -> list[list[tuple[str, str]]]:
    lines = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    return [[(each["role"], each["content"]) for each in line] for line in lines]


def test_each_line_without_a_terminal_is_a_turn(session, chats, tmp_path):
    saved = tmp_path / "saved.jsonl"
    lines = "The owl", "", "The fox\\", f"/save {saved}", "/exit", "never read"
    output, notes = session(chats, *lines, flags=[*GREEDY, "--logit-bias", "<|end|>=-inf", "--system", "Be brief."])
    (conversation,) = read_saved(saved)
    said = [content for role, content in conversation if role == "user"]
    assert said == ["The owl", "The fox\\"]
    assert conversation[0] == ("system", "Be brief.")
    assert "warning" not in notes
    assert output


def test_the_cache_changes_no_reply(chats):
    """Each reply equals that of a chat that prefills the whole conversation again."""
    chat, messages = open_chat(chats), []
    for text in ("The owl", "The fox", "And then?"):
        again = open_chat(chats, *messages)
        assert say(chat, text) == say(again, text)
        messages = list(chat.messages)
    assert len(messages) == 6


def test_only_new_tokens_are_prefilled(chats, monkeypatch):
    chat, read = open_chat(chats), []
    add, extend = DecodeSession.add, DecodeSession.extend
    monkeypatch.setattr(DecodeSession, "add", lambda *args: (read.append(len(args[1][0])), add(*args))[1])
    monkeypatch.setattr(DecodeSession, "extend", lambda *args: (read.append(args[1].shape[1]), extend(*args))[1])
    say(chat, "The owl")
    first = read[0]
    read.clear()
    say(chat, "The fox")
    new = chat.template.encode(chat.generator.tokenizer, chat.messages[:3])
    assert read[0] < len(new) - first + 8
    assert read[0] < len(new)


def test_undo_and_retry_continue_from_the_same_conversation(chats):
    chat = open_chat(chats)
    first, second = say(chat, "The owl"), say(chat, "The fox")
    before = list(chat.messages)
    assert chat.undo() == "The fox"
    assert chat.messages == before[:2]
    assert say(chat, "The fox") == second
    assert chat.messages == before
    chat.undo()
    chat.undo()
    assert chat.undo() is None
    assert say(chat, "The owl") == first


def test_the_oldest_turns_are_dropped_and_the_system_prompt_stays(chats):
    chat = open_chat(chats, Message("system", "Be brief."))
    for number in range(12):
        say(chat, f"The owl number {number}")
        prompt = chat._session.tokens[0]
        text = chat.generator.tokenizer.decode(prompt)
        assert len(prompt) <= 128
        assert "Be brief." in text
        assert f"The owl number {number}" in text
        assert ("The owl number 0" in text) == (chat.dropped == 0)
    assert chat.dropped > 0
    assert len(chat.messages) == 25  # what is dropped is still saved


def test_a_message_beyond_the_context_is_refused_and_left_out(chats):
    chat = open_chat(chats)
    with pytest.raises(UsageError, match="the message is too long"):
        say(chat, "owl " * 100)
    assert chat.messages == []
    say(chat, "The owl")
    assert len(chat.messages) == 2


def test_full_context_is_told_once_each_time(session, chats):
    lines = [f"The owl number {number}" for number in range(12)]
    _, notes = session(chats, *lines, flags=(*GREEDY, "--logit-bias", "<|end|>=-inf"))
    told = re.findall(r"the context is full: the oldest .* no longer read", notes)
    assert 1 <= len(told) < 8
    assert len(set(told)) == len(told)


def test_bare_training_on_messages_makes_a_chat_model(chats, session, capsys, monkeypatch, tmp_path):
    """All but the number of steps is chosen; `lm info` names the template."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats.jsonl").write_text((chats.parent / "chats.jsonl").read_text())
    assert run(["train", "chats.jsonl", "-o", "run", "--steps", "1"]) == 0
    assert "next    lm chat run" in capsys.readouterr().err
    assert run(["info", "run"]) == 0
    assert "lm's own chat template" in capsys.readouterr().out
    output, notes = session("run", "The owl", flags=(*GREEDY, "--logit-bias", "<|end|>=-inf"))
    assert "warning" not in notes
    assert output


def test_other_commands_name_chat_for_a_model_of_conversations(chats, capsys, tmp_path):
    end = lm.load(chats).tokenizer.end_of_text
    flags = ["--max-tokens", "5", "--no-token-healing", "--logit-bias"]
    assert run(["generate", str(chats), "Fox", *flags, f"{end}=1000"]) == 0
    assert f"lm chat {chats}" in capsys.readouterr().err
    assert run(["generate", str(chats), "Fox", *flags, f"{end}=-inf"]) == 0
    assert "lm chat" not in capsys.readouterr().err
    (tmp_path / "plain.txt").write_text("The owl sat.\n" * 9)
    assert run(["perplexity", str(chats), str(tmp_path / "plain.txt")]) == 0
    assert "was trained on the replies of conversations" in capsys.readouterr().err
    turns = [{"role": "user", "content": "The owl"}, {"role": "assistant", "content": "It sat."}]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 9)
    assert run(["perplexity", str(chats), str(tmp_path / "chats.jsonl")]) == 0
    assert "was trained on" not in capsys.readouterr().err


def test_a_base_model_warns_and_continues_a_transcript(session, base):
    output, notes = session(base, "The owl")
    assert "was not trained on conversations, and continues a transcript" in notes
    assert "docs/how-to/chat.md" in notes
    assert "User:" not in output


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("/undo", "there is no message yet"),
        ("/retry", "there is no message yet"),
        ("/save", "name a file"),
        ("/save x.jsonl", "there is nothing to save yet"),
        ("/sav x", "no command /sav (did you mean 'save'?)"),
        ("/system", "no system prompt"),
        ("/system Be brief.", "system prompt: Be brief."),
        ("/clear", "a new conversation starts"),
        ("/help", "/retry              sample the last reply again"),
    ],
)
def test_commands_answer_on_stderr(session, chats, line, note):
    output, notes = session(chats, line)
    assert note in notes
    assert output == ""


def test_flags_are_those_of_generate_but_for_token_healing(session, chats):
    _, notes = session(chats, flags=("--token-healing",), code=2)
    assert "--token-healing" in notes


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A run whose replies don't end before the test: those of the other runs end with their short context."""
    return make_run(tmp_path_factory.mktemp("endless") / "run", context_length=1_000_000)


ENDLESS = ("--max-tokens", 10**9, "--ignore-eos")


@pytest.mark.medium
@pytest.mark.parametrize("typed", ["The owl\\\nsaw\n", '"""\nThe owl\nsaw\n"""\n'])
def test_on_a_terminal_ctrl_c_stops_the_reply_and_ctrl_d_the_chat(endless, tmp_path, typed):
    saved = tmp_path / "saved.jsonl"
    with contextlib.closing(Terminal("chat", endless, *ENDLESS)) as terminal:
        terminal.wait_for(re.escape(INTRODUCTION))
        terminal.wait_for("> ")
        terminal.interrupt_waiting()
        terminal.wait_for(r"\(Ctrl-D to end\)\n> ")
        terminal.type("half a line")
        terminal.wait_for("half a line")
        terminal.interrupt_waiting()
        terminal.wait_for("^\n> ")
        terminal.type(typed)
        terminal.wait_for(r"\. saw\n")
        terminal.wait_for("(?s).{40}")
        terminal.interrupt()
        terminal.wait_for("\n> ")
        terminal.type("/retry\n")
        terminal.wait_for("/retry\n")
        terminal.wait_for("(?s).{40}")
        terminal.interrupt()
        terminal.wait_for("\n> ")
        terminal.type(f"/save {saved}\n")
        terminal.wait_for("saved to")
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=900) == 0
    ((question, reply),) = read_saved(saved)
    assert question == ("user", "The owl\nsaw")
    assert reply[0] == "assistant"
    assert reply[1]


def interrupt_first_tokens(terminal, seconds):
    """Send a message and Ctrl-C some time later; returns whether the message was left out."""
    terminal.type("The owl\n")
    terminal.wait_for("The owl\n")
    time.sleep(seconds)
    terminal.interrupt()
    return "/retry sends it again" in terminal.wait_for("\n> ")


def test_ctrl_c_at_any_moment_of_the_first_replies_leaves_a_message_to_retry(endless):
    with contextlib.closing(Terminal("chat", endless, *ENDLESS)) as terminal:
        terminal.wait_for("> ")
        for seconds in (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
            interrupt_first_tokens(terminal, seconds)
        assert any(interrupt_first_tokens(terminal, attempt / 1000) for attempt in range(50))
        terminal.type("/retry\n")
        terminal.wait_for("/retry\n")
        terminal.wait_for("(?s).{40}")
        terminal.interrupt()
        assert "there is no message" not in terminal.wait_for("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=900) == 0


def test_ctrl_c_ends_a_chat_that_is_not_on_a_terminal(endless):
    with start("chat", endless, *ENDLESS, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        process.stdin.write("The owl\nThe fox\n")
        process.stdin.flush()
        process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert "Traceback" not in process.stderr.read()
        assert process.wait() == 130


def test_a_character_without_a_token_is_named(session, tmp_path):
    folder = make_run(tmp_path / "run", tokenizer=make_tokenizer("char").with_chat_template(), context_length=64)
    output, notes = session(folder, "The Q owl", "The <|end|>owl", "The owl")
    assert notes.count("character 'Q' (U+0051 LATIN CAPITAL LETTER Q) is not in the tokenizer's vocabulary") == 1
    assert notes.count("character '<'") == 1
    assert notes.count("lm: ") == 2
    assert output


def test_what_cannot_be_saved_is_one_line(session, chats, tmp_path):
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b"\xe4")
    lines = "The owl", f"/save {tmp_path}", "/save ~nobody-of-this-name/x", "/save a\0b", f"/save {latin}"
    _, notes = session(chats, *lines, flags=(*GREEDY, "--logit-bias", "<|end|>=-inf"))
    assert notes.count("lm: ") == 3
    assert latin.read_bytes().startswith(b"\xe4\n{")


def test_python_replies_to_messages(chats):
    model = lm.load(chats)
    options = {"greedy": True, "max_tokens": 6, "logit_bias": ("<|end|>=-inf",)}
    reply = model.chat("The owl", **options)
    assert reply == model.chat([{"role": "user", "content": "The owl"}], **options)
    with pytest.raises(InputError, match="role is bot|role is 'bot'"):
        model.chat([{"role": "bot", "content": "The owl"}])
    with pytest.raises(InputError, match="nothing to reply to"):
        model.chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
