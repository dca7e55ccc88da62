"""One thread per process: the models of the tests are too small for more, and machines may be busy.

Options that the environment sets are none of the tests' business.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["NO_COLOR"] = "1"
for _name in [name for name in os.environ if name.startswith("LM_")]:
    del os.environ[_name]
