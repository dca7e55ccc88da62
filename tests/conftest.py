"""One thread per process: the models of the tests are too small for more, and machines may be busy."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["NO_COLOR"] = "1"
