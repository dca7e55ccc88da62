"""Counts of a server, as Prometheus reads them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

from lm.serving.models import Models
from lm.serving.scheduler import Scheduler

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper limits of the histograms, in seconds."""


class Histogram:
    """Counts of durations."""

    def __init__(self) -> None:
        self._counts, self._sum = [0] * (len(_BUCKETS) + 1), 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def format(self, name: str) -> list[str]:
        lines, total = [], 0
        for limit, count in zip((*map(str, _BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{limit}"}} {total}')
        return [*lines, f"{name}_sum {self._sum:.6f}", f"{name}_count {total}"]


class Statistics:
    """Requests and times so far.

    Attributes:
        first_token: seconds from a request to its first token.
        between_tokens: seconds between two tokens of a request.
    """

    def __init__(self, paths: set[str]) -> None:
        """Count the requests of some paths, and of all others together."""
        self._paths, self._requests = paths, Counter[tuple[str, int]]()
        self._lock = threading.Lock()
        self.first_token, self.between_tokens = Histogram(), Histogram()

    def count_request(self, path: str, status: int) -> None:
        """Count an answered request; status 499 if the client left."""
        with self._lock:
            self._requests[path if path in self._paths else "other", status] += 1

    def format(self, models: Models) -> str:
        """Return all counts in the text format of Prometheus."""
        lines = ["# TYPE lm_requests_total counter"]
        with self._lock:
            counted = sorted(self._requests.items())
        lines += [f'lm_requests_total{{path="{path}",status="{status}"}} {count}' for (path, status), count in counted]
        gauges: dict[str, Callable[[Scheduler], int]] = {
            "lm_waiting": lambda scheduler: scheduler.n_waiting,
            "lm_running": lambda scheduler: scheduler.n_running,
            "lm_cache_rows": lambda scheduler: scheduler.n_cache_rows,
            "lm_steps_total": lambda scheduler: scheduler.gauges.steps,
            "lm_prompt_tokens_total": lambda scheduler: scheduler.gauges.prompt_tokens,
            "lm_shared_prompt_tokens_total": lambda scheduler: scheduler.gauges.shared_tokens,
            "lm_generated_tokens_total": lambda scheduler: scheduler.gauges.generated_tokens,
        }
        for name, value in gauges.items():
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
            lines += [f'{name}{{model="{_escape(model.name)}"}} {value(model.scheduler)}' for model in models]
        for name, histogram in (
            ("lm_first_token_seconds", self.first_token),
            ("lm_between_tokens_seconds", self.between_tokens),
        ):
            lines += [f"# TYPE {name} histogram", *histogram.format(name)]
        return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
