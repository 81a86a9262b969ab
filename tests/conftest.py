"""One thread for every test process: pytest-xdist uses the cores, and small models gain nothing from two."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start, too

import torch

torch.set_num_threads(1)
