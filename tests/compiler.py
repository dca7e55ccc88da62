"""Whether torch.compile can build kernels for the CPU here."""

import os
import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler"
)
