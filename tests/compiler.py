"""Whether torch.compile can build kernels for the CPU here."""

import pytest

from lm.errors import UsageError
from lm.training.compiling import check_compiler


def _missing() -> str:
    try:
        check_compiler("cpu")
    except UsageError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(_missing()), reason=_missing())
