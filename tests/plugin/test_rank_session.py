"""A rank's session: what it leaves behind as it ends."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own, as its end is what counts. Unjoined, the thread would be in a call of the
# store as Python ends, and abort the process with status -6, though not each time.
SCRIPT = """
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace as Made
from torch.distributed import TCPStore
from pytest_hwqueue.plugin import ranks
from pytest_hwqueue.plugin.keys import SETTINGS

host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
launched = ranks.LaunchedRank(1, 2, 1, 2, "127.0.0.1", host.port, store_exists=True)
settings = Made(timeout=1, dir="x")
config = Made(stash={SETTINGS: settings}, invocation_params=Made(dir=Path()))
session = ranks.RankedSession(launched, ranks.connect(launched, "session"), config)
(answering,) = (each.ident for each in threading.enumerate() if each.name == "hwq-ranks")
time.sleep(0.3)
# In a call of the store, and in no Python, which tests that count its objects would see.
waits_in = sys._current_frames()[answering].f_code.co_name
session.close()
print(waits_in, [each.name for each in threading.enumerate()])
"""


def test_no_thread_waits_at_the_store_as_a_rank_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "_tell_stacks ['MainThread']\n"), done.stderr
