"""Files that several processes share out: the same results as those of one, in the same order."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cli.main import run
from tests.cli.small_runs import make_run
from tests.cli.toy_translation import pairs
from tests.waiting import SECONDS, wait_until

pytestmark = pytest.mark.slow  # two more processes for each command


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "text": make_run(folder / "text"),
        "other": make_run(folder / "other", n_layers=1),
        "masked": make_run(folder / "masked", objective="masked"),
        "supervised": make_run(folder / "supervised", data_kind="examples"),
        "translation": make_run(folder / "translation", n_encoder_layers=1),
    }


@pytest.fixture
def files(tmp_path):
    text = "The owl saw the fox by the mill. Über den Bäumen sang the owl.\n"
    examples = [{"prompt": text * (n % 3), "completion": "the fox ran" * (n % 2 + 1)} for n in range(40)]
    written = {
        "text": text * 30,
        "more": text * 7 + "<|endoftext|>\n" + text,
        "examples.jsonl": "".join(json.dumps(example) + "\n" for example in examples),
        "source": "".join(f"{source}\n" for source, _ in pairs(60, seed=5)),
        "target": "".join(f"{target}\n" for _, target in pairs(60, seed=5)),
    }
    for name, content in written.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    return {name: str(tmp_path / name) for name in written}


@pytest.fixture
def same(capsys):
    """Checks that two processes write what one writes."""

    def check(*arguments) -> None:
        written = []
        for processes in ("1", "2"):
            code = run([*map(str, arguments), "--threads", processes, "--processes", processes])
            output = capsys.readouterr()
            assert code == 0, output.err
            written.append(output.out)
        assert written[0] == written[1]
        assert written[0]

    return check


def test_translations(runs, files, same):
    same("translate", runs["translation"], files["source"], "--json", "--batch-tokens", 40)
    same("translate", runs["translation"], files["source"], "--set", "translation.read_ahead=7", "--n-best", 2)
    same("translate", runs["translation"], files["source"], "--sample", "--seed", 3)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all(runs, files, sent, code):
    command = ["perplexity", str(runs["text"]), *[files["text"]] * 4000, "--batch-size", "1", "--processes", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:  # fmt: skip
        wait_until(lambda: len(_session(process.pid)) >= 3)
        time.sleep(2)
        os.killpg(process.pid, sent)
        _, error = process.communicate(timeout=SECONDS)
        assert (process.returncode, error) == (code, "")
    wait_until(lambda: not _session(process.pid))


def _session(number: int) -> list[str]:
    """The processes of a session that are no zombies."""
    found = subprocess.run(["ps", "-eo", "sess=,stat=,pid="], capture_output=True, text=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return [pid for group, state, pid in rows if int(group) == number and not state.startswith("Z")]
