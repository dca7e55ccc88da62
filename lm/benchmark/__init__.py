"""What `lm bench` and `lm compile` measure: training and generation speed, against the hardware's limits.

Begin with `speed` (`measure_speed`); `generation` and `hugging_face` are the timed workloads, `hardware_limits` the
roofline. `dtypes` finds the fastest dtype of a run.
"""
