"""One thread for every test process: pytest-xdist uses the cores, and small models gain nothing from two.

`scripts/test-processors` asks for two as well: sums that are split over threads round differently.
"""

import os

THREADS = os.environ.get("VITKIT_TEST_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = THREADS  # of the processes that tests start, too

import torch

torch.set_num_threads(int(THREADS))
