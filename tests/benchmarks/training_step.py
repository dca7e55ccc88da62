"""What Muon or experts add to a training step: the step of a preset with them and without, alternating in one process.

    python -m tests.benchmarks.training_step muon [tiny depth-4] [--against newton-schulz] [--seconds 10] [--threads 2]
    python -m tests.benchmarks.training_step experts [tiny small] [--experts 8] [--optimizer adamw] [--seconds 20]

`muon` trains in the dtype and on the threads that `lm train` chooses for the default step here, which are printed;
presets of a depth have 4,096 tokens per batch, as under a budget of some minutes. `experts` trains in float32 on one
thread; each token goes through one expert, so that the active parameters differ by the gates alone. The ratio is the
median of the rounds.
"""

import argparse
import dataclasses
import statistics
from contextlib import ExitStack

from lm.config.presets import PRESETS, build_run_config
from lm.data.batch import batch_rows
from lm.model.cost import active_parameters, parameters_by_part
from lm.training.run import Run
from lm.training.step_timing import random_data_run, time_interleaved, training_step_timer

BATCH_TOKENS = 4096
OTHERS = {"adamw": {"optimizer": "adamw"}, "newton-schulz": {"orthogonalisation": "newton-schulz"}}


def compare_muon(preset: str, arguments: argparse.Namespace) -> str:
    """Compare the default step of a preset with the same step by another optimizer."""
    training = {} if preset in PRESETS else {"batch_tokens": BATCH_TOKENS}
    config = build_run_config(preset, {"training": training, "hardware": {"threads": arguments.threads}})
    rows = batch_rows(config)
    with ExitStack() as stack:
        muon = stack.enter_context(random_data_run(config, rows=rows))
        hardware = muon.hardware
        config = dataclasses.replace(
            config,
            training=dataclasses.replace(config.training, **OTHERS[arguments.against]),
            hardware=dataclasses.replace(config.hardware, dtype=hardware.dtype, threads=hardware.threads),
        )
        other = stack.enter_context(random_data_run(config, rows=rows))
        with_muon, with_other, ratio = time_steps(muon, other, seconds=arguments.seconds)
    return (
        f"{preset}: {rows} x {config.model.context_length} tokens, {hardware.dtype}, {hardware.threads} threads, "
        f"Muon in {hardware.optimizer_dtype}: {with_muon:.0f} ms/step, {arguments.against} {with_other:.0f} ms, {ratio}"
    )


def compare_experts(preset: str, arguments: argparse.Namespace) -> str:
    """Compare the step of a preset that has experts in each block with the step of the preset."""
    hardware = {"device": "cpu", "dtype": "float32", "threads": 1}
    training = {"optimizer": arguments.optimizer}
    configs = [
        build_run_config(preset, {"model": {"experts": experts}, "training": training, "hardware": hardware})
        for experts in (arguments.experts, 0)
    ]
    rows, model = arguments.rows or batch_rows(configs[0]), configs[0].model
    with ExitStack() as stack:
        runs = [stack.enter_context(random_data_run(config, rows=rows)) for config in configs]
        sparse, dense, ratio = time_steps(*runs, seconds=arguments.seconds)
    return (
        f"{preset}, {arguments.optimizer}: {rows} x {model.context_length} tokens, {active_parameters(model):,} of "
        f"{sum(parameters_by_part(model).values()):,} parameters active: {arguments.experts} experts {sparse:.0f} "
        f"ms/step, none {dense:.0f} ms, {ratio}"
    )


def time_steps(*runs: Run, seconds: float) -> tuple[float, float, str]:
    """Return the median milliseconds of the steps of two runs, and their median ratio in words."""
    rounds = time_interleaved([training_step_timer(run) for run in runs], seconds=seconds)
    medians = (1000 * statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(step / baseline for step, baseline in rounds)
    return *medians, f"ratio {ratio:.2f} ({len(rounds)} rounds)"


def main() -> None:
    """Compare each preset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparisons = parser.add_subparsers(required=True)
    muon = comparisons.add_parser("muon")
    muon.add_argument("presets", nargs="*", default=["tiny", "depth-4"])
    muon.add_argument("--against", choices=OTHERS, default="adamw")
    muon.add_argument("--seconds", type=float, default=10.0, help="for each side")
    muon.add_argument("--threads", type=int)
    muon.set_defaults(compare=compare_muon)
    experts = comparisons.add_parser("experts")
    experts.add_argument("presets", nargs="*", default=["tiny"])
    experts.add_argument("--experts", type=int, default=8)
    experts.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    experts.add_argument("--rows", type=int, help="sequences of a step [default: the preset's]")
    experts.add_argument("--seconds", type=float, default=20.0, help="for each side")
    experts.set_defaults(compare=compare_experts)
    arguments = parser.parse_args()
    for preset in arguments.presets:
        print(arguments.compare(preset, arguments), flush=True)


if __name__ == "__main__":
    main()
