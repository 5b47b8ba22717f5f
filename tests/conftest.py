from __future__ import annotations

import os

# two cores: a thread pool a process is slower than none
os.environ.setdefault("OMP_NUM_THREADS", "2")
