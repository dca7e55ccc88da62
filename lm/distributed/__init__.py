"""One run on several processes: who does which part of a step, and what they tell each other, by torch.distributed."""
