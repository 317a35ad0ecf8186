"""Sends the requests that have no answer yet, many at once, and shows how far."""

import concurrent.futures
import dataclasses
import sys
import threading
import time

from . import store as store_lib
from . import wire


@dataclasses.dataclass(frozen=True)
class Job:
    """One request of a task. `request` is GenerateRequest as JSON."""

    task: str
    item: str
    setting: object  # settings.Setting
    request: dict
    cost: float  # about the seconds that it takes, in any unit

    @property
    def label(self) -> str:
        return f"{self.task}/{self.item}/{self.setting.label}"


def duration(seconds: float) -> str:
    seconds = int(seconds)
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02d}"
    return f"{seconds // 3600}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"


class Progress:
    """A line on standard error: jobs, cost done, time left."""

    def __init__(self, jobs, stream=sys.stderr):
        self._total = len(jobs)
        self._cost = sum(job.cost for job in jobs) or 1
        self._done = 0
        self._done_cost = 0.0
        self._begin = time.monotonic()
        self._stream = stream
        self._last = 0.0

    def step(self, job: Job) -> None:
        self._done += 1
        self._done_cost += job.cost
        now = time.monotonic()
        tty = self._stream.isatty()
        last = self._done == self._total
        if now - self._last < (0.5 if tty else 20) and not last:
            return
        self._last = now
        spent = now - self._begin
        left = spent / self._done_cost * (self._cost - self._done_cost)
        text = (f"{self._done}/{self._total} requests, {duration(spent)} spent,"
                f" about {duration(left)} left, {job.label}")
        end = "\n" if last or not tty else "\r"
        self._stream.write(text.ljust(79)[:160] + end)
        self._stream.flush()


class Runner:
    """Runs jobs against a server; answers come from the store where known."""

    def __init__(self, client, store: store_lib.Store, model: dict,
                 streams: int = 32, deadline: float = float("inf"),
                 stream=sys.stderr):
        self._client = client
        self._store = store
        self._model = model
        self._streams = streams
        self._deadline = deadline  # time.monotonic(); no request starts later
        self._stream = stream  # of the progress
        self._lock = threading.Lock()
        self.not_offered = {}  # "task: setting's name" -> what the server said
        self.refused = {}
        self.left = 0  # requests that the deadline left out

    def key(self, job: Job) -> str:
        return store_lib.request_key(job.request, self._model)

    def answer(self, job: Job):
        """The stored answer, or None."""
        return self._store.get(self.key(job))

    def verify(self, jobs, count: int) -> tuple:
        """Asks `count` of the answered jobs again, spread over all of them.
        Returns how many were asked and the labels of those whose answer is not
        the stored one, bit for bit."""
        known = [job for job in jobs if self.answer(job) is not None]
        chosen = known[::max(1, len(known) // max(1, count))][:count]
        with concurrent.futures.ThreadPoolExecutor(self._streams) as pool:
            answers = list(pool.map(
                lambda job: self._client.generate(job.request), chosen))
        return len(chosen), [job.label for job, answer in zip(chosen, answers)
                             if answer != self.answer(job)]

    def run(self, jobs) -> None:
        wanted, seen = [], set()
        for job in jobs:
            key = self.key(job)
            if key not in seen and self._store.get(key) is None:
                seen.add(key)
                wanted.append(job)
        if not wanted:
            return
        progress = Progress(wanted, self._stream)
        with concurrent.futures.ThreadPoolExecutor(self._streams) as pool:
            for _ in pool.map(lambda job: self._one(job, progress), wanted):
                pass

    def _one(self, job: Job, progress: Progress) -> None:
        name = f"{job.task}: {job.setting.name}"
        if time.monotonic() >= self._deadline:
            with self._lock:
                self.left += 1
            return
        if name not in self.not_offered:
            try:
                answer = self._client.generate(job.request)
                self._store.put(self.key(job), job.label, answer)
            except wire.NotOffered as error:
                self.not_offered[name] = str(error)
            except wire.Refused as error:
                self.refused.setdefault(job.label, str(error))
        with self._lock:
            progress.step(job)
