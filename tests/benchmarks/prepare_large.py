"""What `lm prepare` needs for a large corpus, and what an interruption costs it.

    python tests/benchmarks/prepare_large.py memory [--megabytes 1000] [--files 50] [--processes 1 2]
    python tests/benchmarks/prepare_large.py kills [--megabytes 200] [--files 10] [--kills 10] [--seed 0]
    python tests/benchmarks/prepare_large.py parts [--megabytes 200] [--files 10] [--parts 2]

The corpus is made of the stories that ship, shuffled again for each file. `memory` prints, for each number of
processes, wall time, CPU time and peak memory: of all processes together, sampled fifty times a second, and of the
first. `kills` kills the command at random moments, starts it again, and checks that no finished chunk is computed twice
and that the folder equals that of an uninterrupted run. `parts` prepares a corpus in several partitions, and checks
that the joined folder equals it too. On a busy machine, CPU time is reliable and wall time is not.
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import corpora

STORIES = Path(corpora.__file__).parent / "stories" / "train.txt"
SEPARATOR = "<|endoftext|>\n"


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="prepare-large-") as name:
        folder = Path(name)
        os.environ["LM_CACHE"] = str(folder / "cache")
        make_corpus(folder / "corpus", megabytes=arguments.megabytes, files=arguments.files)
        arguments.measure(arguments, folder)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = parser.add_subparsers(required=True)
    for measure, megabytes, files in ((memory, 1000, 50), (kills, 200, 10), (parts, 200, 10)):
        of_one = measures.add_parser(measure.__name__)
        of_one.set_defaults(measure=measure)
        of_one.add_argument("--megabytes", type=int, default=megabytes)
        of_one.add_argument("--files", type=int, default=files)
        if measure is memory:
            of_one.add_argument("--processes", type=int, nargs="+", default=[1, 2])
        if measure is kills:
            of_one.add_argument("--kills", type=int, default=10)
            of_one.add_argument("--seed", type=int, default=0)
        if measure is parts:
            of_one.add_argument("--parts", type=int, default=2)
    return parser.parse_args()


def make_corpus(folder: Path, *, megabytes: int, files: int) -> None:
    folder.mkdir()
    stories = STORIES.read_text().split(SEPARATOR)
    for number in range(files):
        drawn, size = random.Random(number), 0
        with (folder / f"{number:03}.txt").open("w") as file:
            while size < megabytes * 1e6 / files:
                drawn.shuffle(stories)
                size += file.write(SEPARATOR.join(stories) + SEPARATOR)


def command(corpus: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", "prepare", str(corpus), "-o", str(out), *more]


@dataclass
class Usage:
    """Wall and CPU seconds of a command, and the peak memory of all its processes and of the first one, in bytes."""

    seconds: float
    cpu_seconds: float
    memory: int
    memory_of_first: int


def run_measured(arguments: list[str]) -> Usage:
    began, before = time.perf_counter(), children_seconds()
    memory = memory_of_first = 0
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        resident = [resident_of(identity) for identity in (process.pid, *children_of(process.pid))]
        memory, memory_of_first = max(memory, sum(resident)), max(memory_of_first, resident[0])
        time.sleep(0.02)
    assert process.returncode == 0
    return Usage(time.perf_counter() - began, children_seconds() - before, memory, memory_of_first)


def children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def children_of(identity: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{identity}/task/{identity}/children").read_text().split()]
    except OSError:
        return []


def resident_of(identity: int) -> int:
    try:
        pages = Path(f"/proc/{identity}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def memory(arguments: argparse.Namespace, folder: Path) -> None:
    checksums = set()
    for number in arguments.processes:
        out = folder / f"out-{number}"
        os.environ["LM_CACHE"] = str(folder / f"cache-{number}")  # so that each trains the tokenizer
        usage = run_measured(command(folder / "corpus", out, "--processes", str(number)))
        checksums.add(checksum(out))
        print(
            f"{arguments.megabytes} MB in {arguments.files} files, --processes {number}: {usage.seconds:.0f} s, "
            f"{usage.cpu_seconds:.0f} s of CPU time, {usage.memory / 1e6:.0f} MB in all, "
            f"{usage.memory_of_first / 1e6:.0f} MB in the first process",
            flush=True,
        )
    print("the same folder, byte for byte" if len(checksums) == 1 else "DIFFERENT FOLDERS")


def checksum(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def kills(arguments: argparse.Namespace, folder: Path) -> None:
    corpus, drawn = folder / "corpus", random.Random(arguments.seed)
    usage = run_measured(command(corpus, folder / "whole"))
    print(f"uninterrupted: {usage.seconds:.0f} s, {usage.cpu_seconds:.0f} s of CPU time", flush=True)
    out, n_kills, n_repeated = folder / "out", 0, 0
    while n_kills < arguments.kills:
        before = finished(out)
        process = subprocess.Popen(command(corpus, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(drawn.uniform(0, usage.seconds / 3))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            n_kills += 1
            time.sleep(0.2)  # in which its processes end, as it has
        after = finished(out)
        n_repeated += sum(before[name] != identity for name, identity in after.items() if name in before)
        print(f"killed {n_kills}: {len(before)} chunks before, {len(after)} after", flush=True)
        if out.exists():
            assert checksum(out) == checksum(folder / "whole")
            subprocess.run(["rm", "-r", str(out)], check=True)
    subprocess.run(command(corpus, out), check=True, stdout=subprocess.DEVNULL)
    assert checksum(out) == checksum(folder / "whole")
    print(f"killed {n_kills} times: the same folder, {n_repeated} finished chunks were recomputed")


def finished(out: Path) -> dict[str, tuple[int, int]]:
    """Return the finished chunks of an unfinished folder, each with what tells it from one that was recomputed."""
    chunks = {path.parent.name: path.stat() for path in out.with_name(f".{out.name}.parts").glob("*/part.json")}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in chunks.items() if ".new-" not in name}


def parts(arguments: argparse.Namespace, folder: Path) -> None:
    corpus, count = folder / "corpus", arguments.parts
    partitions = [folder / f"part-{number}" for number in range(1, count + 1)]
    for number, partition in enumerate(partitions, 1):
        subprocess.run(command(corpus, partition, "--part", f"{number}/{count}"), check=True)
    join = [sys.executable, "-m", "cli.main", "prepare", "--join", *map(str, partitions), "-o", str(folder / "joined")]
    subprocess.run(join, check=True)
    subprocess.run(command(corpus, folder / "whole"), check=True)
    is_same = checksum(folder / "joined") == checksum(folder / "whole")
    print(f"{count} partitions joined: {'the same folder, byte for byte' if is_same else 'ANOTHER FOLDER'}")


if __name__ == "__main__":
    main()
