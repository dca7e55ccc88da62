import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm import files
from lm.kernels import code_cache
from tests.conftest import FOLDERS

ASK = "import os; from pathlib import Path; from lm import files; print(Path.home(), files.cache_root())"


def home_of_the_user() -> Path:
    import pwd

    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def test_tests_do_not_see_the_users_home_cache_or_configuration():
    assert Path.home() != home_of_the_user()
    assert files.cache_root().is_relative_to(Path.home())
    assert all(Path(os.environ[name]).is_relative_to(Path.home()) for name in FOLDERS)
    assert not code_cache.is_complete()


def test_neither_do_commands_that_tests_start():
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == [str(Path.home()), str(files.cache_root())]


@pytest.mark.slow
def test_a_filled_cache_of_the_user_changes_nothing(tmp_path):
    """As after `lm compile`: the mark says that all was compiled."""
    mark = (
        "from lm.kernels import code_cache as c; c.code_folder().mkdir(parents=True); "
        "(c.code_folder() / 'complete').touch(); print(c.is_complete())"
    )
    environment = {**os.environ, "LM_CACHE": str(tmp_path)}
    filled = subprocess.run([sys.executable, "-c", mark], env=environment, capture_output=True, text=True, check=True)
    assert filled.stdout.strip() == "True"
    test = f"{__file__}::{test_tests_do_not_see_the_users_home_cache_or_configuration.__name__}"
    run = [sys.executable, "-m", "pytest", "-n0", "-pno:cacheprovider", test]
    subprocess.run(run, env=environment, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.DEVNULL)
