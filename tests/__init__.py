"""The laws of the project. Tests run side by side, a thread each: set before torch is loaded."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
