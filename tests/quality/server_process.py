"""Starts a server of the release build for the time of a run."""

import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import time


def free_address() -> str:
    """A loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """In the child: end with the harness, however that ends (Linux)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class ServerProcess:
    """Runs `binary` with `model`; as a context manager gives its address."""

    def __init__(self, binary: pathlib.Path, model: pathlib.Path, flags=(),
                 log: pathlib.Path = pathlib.Path(os.devnull)):
        self.command = [str(binary), "--model", str(model), *flags]
        self._log = log
        self._process = None

    def __enter__(self) -> str:
        address = free_address()
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self.command + ["--grpc_address", address, "--http_address",
                                ""], stdout=log, stderr=log,
                preexec_fn=_die_with_parent)
        time.sleep(0.2)
        if self._process.poll() is not None:
            raise SystemExit(f"the server did not start, see {self._log}: "
                             f"{' '.join(self.command)}")
        return address

    def __exit__(self, *unused) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
