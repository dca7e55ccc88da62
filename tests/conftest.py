"""One thread per process, unless TEST_THREADS says otherwise: the models of the tests are too small for more, and
machines may be busy.

Tests and the commands they start see an empty home, cache and configuration, and no options from the environment.
Which arithmetic is fastest on a machine at the moment is ignored too, save where that is what is tested.
"""

import gc
import itertools
import os
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.kept import kept_folder

os.environ["OMP_NUM_THREADS"] = os.environ.get("TEST_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["NO_COLOR"] = "1"
gc.set_threshold(200_000, 50, 100)  # 700 objects are made hundreds of times while a module is imported, or a test runs
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as where a shell starts this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _name in [name for name in os.environ if name.startswith("LM_")]:
    del os.environ[_name]

FOLDERS = {
    "LM_CACHE": "lm-cache", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data",
    "XDG_STATE_HOME": "state",
}  # fmt: skip
"""Variables that name folders of the user, and where in a test's home they point to."""


def pytest_configure(config: pytest.Config) -> None:
    """Give tests a home of their own, so that none reads or writes what belongs to the user.

    Each worker has one. The font list that matplotlib makes in seconds is kept from one run of the tests to the next.
    The folder of compiled code is empty, but it is there: the suggestion to compile has been printed.
    """
    from lm.kernels import code_cache

    home = tempfile.TemporaryDirectory(prefix="lm-tests-", ignore_cleanup_errors=True)
    patch = pytest.MonkeyPatch()
    for name in ("HOME", "USERPROFILE"):
        patch.setenv(name, home.name)
    for name, folder in FOLDERS.items():
        patch.setenv(name, str(Path(home.name, folder)))
    patch.setenv("MPLCONFIGDIR", str(kept_folder(config, "matplotlib")))
    if code_cache.is_installed():
        code_cache.code_folder().mkdir(parents=True)
    config.add_cleanup(home.cleanup)
    config.add_cleanup(patch.undo)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what has been imported by now out of every collection of garbage: it stays, and to search it takes time.

    torch, transformers and the tests are some millions of objects.
    """
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--device` for the tests that depend on one."""
    parser.addoption("--device", default="cpu", help="device of the tests marked so: cpu, cuda or mps")
    parser.addoption("--cases", type=int, help="run at most so many cases of each test with parameters")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whole commands first, which take longest: so that in the end no worker is left alone with them."""
    items.sort(key=lambda item: "system" not in item.path.parts)
    for item in items:
        if isinstance(item, pytest.Function) and _is_numerical(item.module):
            item.add_marker("numerical")
    for cases in _cases_by_test(items):
        for case in set(cases) - _covering(cases):
            case.add_marker("slow")
    if most := config.getoption("--cases"):
        _keep_cases(items, most)


def _is_numerical(module: ModuleType) -> bool:
    """Whether a module compares what was rounded."""
    return any(getattr(value, "__module__", "") == "tests.tolerances" for value in vars(module).values())


def _cases_by_test(items: list[pytest.Item]) -> Iterable[list[pytest.Item]]:
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    return cases.values()


def _covering(cases: list[pytest.Item]) -> set[pytest.Item]:
    """Of a grid of parameters, select cases in which each value occurs, or of three axes and more each pair of values.

    The others are slow.
    """
    combinations = {case: _combinations(case) for case in cases if case.get_closest_marker("slow") is None}
    missing, used, chosen = set().union(*combinations.values()), Counter[Hashable](), set()

    def gain(case: pytest.Item) -> tuple[int, int]:
        return len(combinations[case] & missing), -sum(used[each] for each in combinations[case])

    while missing:
        best = max(combinations, key=gain)
        missing -= combinations[best]
        used.update(combinations[best])
        chosen.add(best)
    return chosen | {case for case, values in combinations.items() if not values}


def _combinations(case: pytest.Item) -> set[Hashable]:
    """Return the values of a case by axis, or the pairs of them; nothing where there is no grid."""
    if not isinstance(case, pytest.Function) or not hasattr(case, "callspec"):
        return set()
    axes = [mark.args[0] for mark in case.iter_markers("parametrize")]
    axes = [tuple(name.strip() for name in axis.split(",")) if isinstance(axis, str) else tuple(axis) for axis in axes]
    values = case.callspec.params
    axes += [(name,) for name in values.keys() - set(itertools.chain(*axes))]  # of fixtures
    found = sorted((axis, tuple(id(values[name]) for name in axis)) for axis in axes)
    return set(found if len(found) == 2 else itertools.combinations(found, 2))


def _keep_cases(items: list[pytest.Item], most: int) -> None:
    """Keep cases of each test that are evenly spread over its parameters, of the slow ones as many."""
    kept = set()
    for cases in _cases_by_test(items):
        for is_slow in (False, True):
            of = [case for case in cases if (case.get_closest_marker("slow") is not None) == is_slow]
            kept |= {of[place * len(of) // most] for place in range(most) if of}
    items[:] = [item for item in items if item in kept]


@pytest.fixture(scope="session", autouse=True)
def the_first_is_fastest() -> Iterator[None]:
    """Runs train in float32 wherever they may choose, so that they learn the same every time.

    Other processes choose for themselves: tests that compare what these compute name the dtype.
    """
    from lm.training import objective as hardware_selection

    def first(choices: Sequence[object], measure: Callable[..., float]) -> object:
        return choices[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware_selection, "select_fastest", first)
        yield


@pytest.fixture
def succeed(capsys) -> Callable[..., str]:
    """Run `lm …` in this process; return what it printed on stdout."""
    from cli.main import run

    def succeed(*arguments: object) -> str:
        capsys.readouterr()
        code = run([*map(str, arguments)])
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    return succeed


@pytest.fixture(scope="session")
def code_of_models(tmp_path_factory) -> Iterator[None]:
    """Code that comes in the folders of models is kept, by transformers, where the tests end with it."""
    from transformers import dynamic_module_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield
