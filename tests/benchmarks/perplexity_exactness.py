"""Compare log-probabilities of `lm perplexity` with a loop in float64 that predicts one token at a time.

    python -m tests.benchmarks.perplexity_exactness RUN FILE [--tokens 1500]

For several contexts and strides: the greatest difference of any token's log-probability in nats, and how far the
totals of batch sizes 1 to 32 lie apart, relative to the total.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from lm.checkpoint import load_model
from lm.hardware import Hardware
from lm.model.transformer import DecoderOnly
from tests.lm.evaluation.small_models import score_document


def loop(model: DecoderOnly, tokens: list[int], context: int, stride: int) -> np.ndarray:
    """Return the surprisal of tokens[1:], each predicted alone from the preceding tokens in its window."""
    nats, start = [], 0
    for place in range(1, len(tokens)):
        while place > start + context:  # the first window that predicts this token
            start += stride
        with torch.inference_mode():
            logits = model(torch.tensor([tokens[start:place]]))[0, -1]
        nats.append(-float(logits.log_softmax(-1)[tokens[place]]))
    return np.array(nats)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=int, default=1500)
    arguments = parser.parse_args()
    hardware = Hardware("cpu", "float32", torch.get_num_threads())
    loaded, double = (load_model(arguments.run, hardware) for _ in range(2))
    double.model.double()
    text = arguments.file.read_text(encoding="utf-8")[: 8 * arguments.tokens]
    start, ids = loaded.tokenizer.start_of_text, loaded.tokenizer.encode(text)[: arguments.tokens]
    longest = loaded.config.model.context_length
    for context, stride in ((longest, longest), (longest, longest // 2), (longest // 2, 1), (longest // 4, 7)):
        expected = loop(double.model, ids if start is None else [start, *ids], context, stride)
        scores = [
            score_document(loaded.model, ids, context=context, stride=stride, start_token=start, batch_size=batch_size)
            for batch_size in (1, 3, 16, 32)
        ]
        worst = max(np.abs(found - expected).max() for found in scores)
        totals = [found.sum() for found in scores]
        apart = (max(totals) - min(totals)) / totals[0]
        print(f"context {context}, stride {stride}: greatest difference {worst:.1e} nats; totals apart {apart:.1e}")


if __name__ == "__main__":
    main()
