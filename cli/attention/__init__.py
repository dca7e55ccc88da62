"""`lm attention`, and the attention maps of `lm translate`: `attention` is the command, `output` draws and writes."""
