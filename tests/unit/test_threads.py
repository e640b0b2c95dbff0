"""What needs a thread when there is room for none: it says so, or tries again, and breaks nothing else."""

import threading

import pytest

from cachecore.errors import CacheError
from cachecore.peers.inbox import Inbox
from cachecore.peers.worker import Worker


@pytest.fixture
def make_room(monkeypatch):
    """No thread can be started until this function is called."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield patched.undo


def test_a_worker_runs_what_came_in_before_it_could_start(make_room, caplog):
    worker, done = Worker("worker"), []
    worker.submit(lambda: done.append(1))  # in the service thread this must not raise: it would end all links
    assert "can't start new thread" in caplog.text
    make_room()
    second = threading.Event()
    worker.submit(second.set)
    assert second.wait(20) and done == [1]


def test_a_callback_for_which_there_is_no_thread_is_refused_and_can_be_given_again(make_room):
    inbox, taken = Inbox("inbox", None, lambda sender, detail: None), threading.Event()
    with pytest.raises(CacheError, match="can't start new thread"):
        inbox.listen(lambda item: taken.set())
    assert inbox.drain() == []  # it is still polled
    make_room()
    inbox.listen(lambda item: taken.set())
    with pytest.raises(CacheError):
        inbox.drain()
    inbox.close()
