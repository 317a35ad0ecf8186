"""A server started for a run does not outlive the run."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from tests.quality import server_process

# The harness's side: starts the stand-in, says so, and waits to be killed.
HARNESS = """
import pathlib, sys, time
from tests.quality import server_process
binary, model = map(pathlib.Path, sys.argv[1:])
with server_process.ServerProcess(binary, model):
    print("started", flush=True)
    time.sleep(60)
"""


def runs(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return state.rsplit(")", 1)[1].split()[0] != "Z"


class ServerProcessTest(unittest.TestCase):
    def test_ends_with_a_killed_harness(self):
        with tempfile.TemporaryDirectory() as folder:
            binary = pathlib.Path(folder, "server")
            written = pathlib.Path(folder, "pid")
            binary.write_text(f"#!/bin/sh\necho $$ > {written}.new\n"
                              f"mv {written}.new {written}\nexec sleep 60\n",
                              encoding="ascii")
            binary.chmod(0o700)
            with subprocess.Popen(
                    [sys.executable, "-c", HARNESS, str(binary), "no.gguf"],
                    stdout=subprocess.PIPE, env={**os.environ}) as harness:
                self.assertEqual(harness.stdout.readline(), b"started\n")
                while not written.exists():
                    time.sleep(0.01)
                pid = int(written.read_text(encoding="ascii"))
                self.assertTrue(runs(pid))
                harness.send_signal(signal.SIGKILL)
            end = time.monotonic() + 30
            while runs(pid) and time.monotonic() < end:
                time.sleep(0.01)
            alive = runs(pid)
            if alive:
                os.kill(pid, signal.SIGKILL)
            self.assertFalse(alive)


if __name__ == "__main__":
    unittest.main()
