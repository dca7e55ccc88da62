"""Train from Python what `lm train` trains: a budget, fine-tuning, adapters, resuming, pairs, labels.

Run it in a folder with text.txt, letters.txt, train.en, train.de and reviews.jsonl ({"text": …, "label": …} a line):

    python training.py

Every keyword is a flag of `lm train` with underscores; `--from` is `from_run`.
"""

from __future__ import annotations

from contextlib import closing

import lm

SMALL = {"kind": "byte", "d_model": 32, "n_layers": 1, "n_heads": 2, "context": 32, "batch_size": 4}
"""A model for a demonstration; leave it out for a real one."""


def main() -> None:
    """Train one run of each kind."""
    # A budget: size, regularisation and number of steps are chosen for the text and this machine.
    model = lm.train("text.txt", out="runs/budget", budget="20s")
    print(model.config.n_layers, "layers")

    # A plain run, watched as it trains.
    def show(event: object) -> None:
        if isinstance(event, lm.Evaluation):
            print(f"step {event.step}: validation loss {event.loss:.3f}")

    lm.train("text.txt", out="runs/base", steps=20, evaluate_every=10, on_event=show, **SMALL)

    # A loop that is left early is saved; `resume` continues where it stopped, to the same weights.
    spec = lm.run_spec("text.txt", out="runs/again", steps=20, evaluate_every=10, **SMALL)
    with closing(lm.train_events(spec)) as events:
        for event in events:
            if isinstance(event, lm.Step) and event.step == 7:
                break
    lm.train(resume="runs/again")

    # Fine-tuning: all weights, or low-rank adapters beside frozen ones.
    lm.train("letters.txt", out="runs/tuned", from_run="runs/base", steps=5, batch_size=4)
    lm.train("letters.txt", out="runs/adapted", from_run="runs/base", lora=4, steps=5, batch_size=4)

    # Translation, from files of sentences line by line.
    pairs = {"kind": "byte", "d_model": 32, "n_layers": 1, "n_encoder_layers": 1, "n_heads": 2, "d_ff": 64}
    translator = lm.train(
        source="train.en", target="train.de", out="runs/translator", preset="translation-tiny", steps=5, **pairs
    )
    print(translator.translate("one two"))

    # A classifier: first a masked model of the text, then the labels.
    lm.train("text.txt", out="runs/masked", objective="masked", steps=5, **SMALL)
    labeller = lm.train("reviews.jsonl", out="runs/labels", label_column="label", from_run="runs/masked", steps=5)
    print([each.label for each in labeller.classify(["good", "bad"])])


if __name__ == "__main__":
    main()
