"""The demo's child processes: started, spoken to, and ended within bounded time whatever happens to them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from multiprocessing.connection import wait
from pathlib import Path

from cachecore.cli.demo.messages import Channel, ChannelClosedError, Failed, Message
from cachecore.errors import CacheError, StatusCode

__all__ = ["ChildFailedError", "ChildProcess", "wait_for_any"]

#: A pull reports its own timeout first; the parent gives up a little later.
MARGIN_SECONDS = 5.0
_EXIT_SECONDS = 10.0
_DEATH_SECONDS = 1.0
_STATES = {"T": " (it is stopped)", "t": " (it is being traced)", "D": " (it waits for the kernel)"}


class ChildFailedError(CacheError):
    """A child process failed, was killed, ended early or does not answer.

    Attributes:
        role: Which.
    """

    def __init__(self, message: str, *, role: str = "", status_code: StatusCode | None = None) -> None:
        super().__init__(message, status_code=status_code)
        self.role = role


class ChildProcess:
    """One role in a process of its own.

    Args:
        role: "prefill" or "decode".
        timeout: Longest time for one answer, in seconds.
    """

    def __init__(self, role: str, timeout: float) -> None:
        self.role = role
        self._timeout = timeout
        self._allowed = timeout
        self._due: float | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            # The child imports what this process imported: with `-c` the current folder would come first, and a
            # checkout in it would shadow the installed package.
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from cachecore.cli.demo.child import serve; sys.exit(serve({theirs.fileno()}))"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output carries the report only
            )
        self._channel = Channel(ours, timeout)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def waiting(self) -> bool:
        """Whether an answer is outstanding."""
        return self._due is not None

    @property
    def due(self) -> float:
        """When the outstanding answer must be there, on `time.monotonic()`; infinity when none is outstanding."""
        return float("inf") if self._due is None else self._due

    def fileno(self) -> int:
        """Readable when there is an answer or the process is gone."""
        return self._channel.fileno()

    def post(self, message: Message) -> None:
        """Send a message that has no answer.

        Raises:
            ChildFailedError: The process is gone or takes no messages.
        """
        try:
            self._channel.send(message)
        except ChannelClosedError as error:
            raise self._gone(str(error)) from error

    def ask(self, message: Message, extra: float = 0.0) -> None:
        """Send a message whose answer `receive` will return. One at a time: two large ones could block both ends.

        Args:
            message: The question.
            extra: Seconds that the answer may take beyond the timeout.
        """
        assert self._due is None, "one question at a time"
        self.post(message)
        self._allowed = self._timeout + MARGIN_SECONDS + extra
        self._due = time.monotonic() + self._allowed

    def receive(self) -> Message:
        """The outstanding answer.

        Raises:
            ChildFailedError: The process failed, is gone, or does not answer in time.
        """
        if not wait_for_any([self], self.due):
            raise self.late()
        try:
            message = self._channel.receive()
        except ChannelClosedError as error:
            raise self._gone(str(error)) from error
        self._due = None
        if isinstance(message, Failed):
            raise self._error(f"failed: {message.error}: {message.text}")
        return message

    def late(self) -> ChildFailedError:
        """The error for an answer that did not come."""
        state = ""
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return self._error(
            f"did not answer for {self._allowed:g} s{_STATES.get(state, '')}; see --timeout",
            StatusCode.TIMEOUT,
        )

    def trouble(self) -> ChildFailedError | None:
        """What is wrong with this process, waiting a few seconds for it to say so; None when nothing is."""
        seconds = MARGIN_SECONDS if self.waiting else _DEATH_SECONDS
        if not wait_for_any([self], min(self.due, time.monotonic() + seconds)):
            return None
        try:
            self.receive()
        except ChildFailedError as error:
            return error
        return None

    def finish(self) -> None:
        """Wait for the process to end by itself after its last answer.

        Raises:
            ChildFailedError: It ended with an error, or it does not end.
        """
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise self._error(f"gave everything back but did not end within {_EXIT_SECONDS:g} s") from error
        if code:
            raise self._gone("after its last answer")

    def end(self) -> None:
        """End the process now; never raises and never waits for its cooperation."""
        self._channel.close()
        if self._process.poll() is None:
            self._process.kill()  # also ends a stopped one, which SIGTERM does not
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits for the kernel ends when that lets it
            self._process.wait(_EXIT_SECONDS)

    def _gone(self, what: str) -> ChildFailedError:
        try:
            code = self._process.wait(_DEATH_SECONDS)  # the socket closes a moment before the exit code is there
        except subprocess.TimeoutExpired:
            return self._error(f"is not usable any more: {what}")
        if code >= 0:
            return self._error(f"ended early with exit code {code}")
        try:
            name = f" ({signal.Signals(-code).name})"
        except ValueError:  # a real-time signal
            name = ""
        return self._error(f"was ended by signal {-code}{name}")

    def _error(self, what: str, status_code: StatusCode | None = None) -> ChildFailedError:
        text = f"the {self.role} process (pid {self.pid}) {what}"
        return ChildFailedError(text, role=self.role, status_code=status_code)


def wait_for_any(children: Iterable[ChildProcess], deadline: float) -> list[ChildProcess]:
    """Children that have something to `receive`, or none when the deadline (on `time.monotonic()`) passes first."""
    remaining = max(0.0, deadline - time.monotonic())
    timeout = None if remaining == float("inf") else remaining
    by_descriptor = {child.fileno(): child for child in children}
    return [by_descriptor[ready] for ready in wait(list(by_descriptor), timeout) if isinstance(ready, int)]
