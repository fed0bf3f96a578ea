"""Settings of the whole suite: one thread per process, since the processes share the cores."""

import torch

torch.set_num_threads(1)
