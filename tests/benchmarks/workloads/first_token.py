"""Load a model of Hugging Face and generate a token: `python -m tests.benchmarks.workloads.first_token PATH N`."""

import sys

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(int(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
print(model.generate(torch.tensor([[1]]), max_new_tokens=1, do_sample=False, pad_token_id=0).tolist())
