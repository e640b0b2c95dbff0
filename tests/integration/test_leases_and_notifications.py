"""Block leases and notifications between processes that die, stop, abort and restart."""

import contextlib
import gc
import importlib.util
import signal
import threading
import time
from pathlib import Path

import pytest

import cachecore as cc

SCRIPT = Path(__file__).with_name("partner.py")
spec = importlib.util.spec_from_file_location("partner", SCRIPT)
partner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(partner)
BLOCKS = [1, 5, 6, 7]


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


@pytest.fixture
def prefill():
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(cc.CacheManager(1, backend="host", listen="127.0.0.1:0"))
        manager.cache, manager.addresses = partner.register(manager)
        yield manager


@pytest.fixture
def partners(owners):
    def start(cluster_id, listen=""):
        return owners(cluster_id, listen, script=SCRIPT)

    return start


@pytest.fixture
def decode(partners, prefill):
    process = partners(2)
    process.ask("link", cluster_id=1, address=prefill.address)
    process.ask("register")
    return process


def stop(process):
    """Stop a process; from when this returns it runs no more."""
    process.signal(signal.SIGSTOP)
    threads = Path(f"/proc/{process.process.pid}/task")
    until(lambda: all(file.read_text().rpartition(")")[2].split()[0] == "T" for file in threads.glob("*/stat")))


def readers(manager):
    return [info.readers for info in manager.leases]


def leased_pull(prefill, decode, name="pull", ttl=60.0, **more):
    """A pull of the other process that has claimed its lease and has not begun to read."""
    lease = prefill.lease(prefill.cache, BLOCKS, ttl)
    decode.ask("pull", name=name, cluster_id=1, blocks=BLOCKS, lease=lease.to_bytes().hex(), **more)
    until(lambda: (2,) in readers(prefill))
    return lease


def test_an_expired_request_serves_the_running_pull_and_nobody_else(prefill, decode):
    lease = leased_pull(prefill, decode, ttl=0.5)
    until(lambda: prefill.leases[0].state == "EXPIRED")
    assert prefill.expired_leases() == []
    decode.ask("pull", name="late", cluster_id=1, blocks=BLOCKS[:2], lease=lease.to_bytes().hex(), wait=False)
    kind, message = decode.ask("result", name="late")
    assert kind == "LeaseExpiredError" and "expired" in message
    assert decode.ask("wrong", blocks=BLOCKS, content=2) == [], "nothing has moved"
    decode.ask("go", name="pull")
    assert decode.ask("result", name="pull") == ["done", ""]
    assert decode.ask("wrong", blocks=BLOCKS, content=1) == []
    until(lambda: prefill.expired_leases() == [lease])
    assert prefill.leases == ()


def test_a_killed_reader_frees_the_blocks_at_once(prefill, decode):
    lease = leased_pull(prefill, decode)
    with pytest.raises(cc.CacheBusyError) as caught:
        prefill.release_lease(lease, timeout=0.1)
    assert caught.value.peers == (2,) and prefill.leases[0].state == "REVOKED"
    decode.signal(signal.SIGKILL)
    prefill.release_lease(lease, timeout=15)  # below the 20 s of silence: the engine has proven the death
    assert prefill.leases == ()


def test_blocks_of_a_stopped_reader_are_kept_until_it_cannot_count_what_it_reads(prefill, decode):
    lease = leased_pull(prefill, decode)
    stop(decode)
    with pytest.raises(cc.CacheBusyError):
        prefill.release_lease(lease, timeout=5)
    prefill.release_lease(lease, timeout=40)
    partner.fill(prefill.addresses, 9, BLOCKS)  # the next request's
    decode.signal(signal.SIGCONT)
    decode.ask("go", name="pull")
    assert decode.ask("result", name="pull")[0] == "LinkLostError"


def test_an_abort_of_the_reader_is_known_to_both_sides(prefill, decode):
    lease = leased_pull(prefill, decode, timeout=1.0)
    assert decode.ask("result", name="pull")[0] == "TransferTimeoutError"
    prefill.release_lease(lease, timeout=10)
    assert decode.ask("wrong", blocks=BLOCKS, content=2) == []


def test_an_abort_of_the_owner_waits_for_the_running_pull_and_stops_the_next(prefill, decode):
    lease = leased_pull(prefill, decode)
    aborted = threading.Thread(target=prefill.release_lease, args=(lease,))
    aborted.start()
    until(lambda: prefill.leases[0].state == "REVOKED")
    decode.ask("pull", name="next", cluster_id=1, blocks=BLOCKS, lease=lease.to_bytes().hex(), wait=False)
    assert decode.ask("result", name="next")[0] == "LeaseExpiredError"
    decode.ask("go", name="pull")
    aborted.join(30)
    assert not aborted.is_alive() and decode.ask("result", name="pull") == ["done", ""]
    assert decode.ask("wrong", blocks=BLOCKS, content=1) == []


def test_unregistering_waits_for_the_readers_of_leases(prefill, decode):
    lease = leased_pull(prefill, decode)
    with pytest.raises(cc.CacheBusyError) as caught:
        prefill.unregister_cache(prefill.cache.cache_id, timeout=0.2)
    assert caught.value.peers == (2,) and caught.value.ranges
    with pytest.raises(cc.CacheNotFoundError):
        prefill.lease(prefill.cache, BLOCKS, 1.0)
    with pytest.raises(cc.LeaseExpiredError, match="being unregistered"):
        prefill.renew_lease(lease, 5.0)
    decode.ask("go", name="pull")
    prefill.unregister_cache(prefill.cache.cache_id, timeout=20)
    assert decode.ask("result", name="pull") == ["done", ""] and prefill.leases == ()


def test_blocks_outside_the_lease_and_leases_of_others_move_nothing(prefill, decode):
    lease = prefill.lease(prefill.cache, BLOCKS, 60.0).to_bytes().hex()
    decode.ask("pull", name="outside", cluster_id=1, blocks=[1, 2], lease=lease, wait=False)
    kind, message = decode.ask("result", name="outside")
    assert kind == "CacheValueError" and "src_blocks[1] is block 2" in message
    foreign = decode.ask("lease", blocks=BLOCKS, ttl=60.0)
    decode.ask("pull", name="foreign", cluster_id=1, blocks=BLOCKS, lease=foreign, wait=False)
    kind, message = decode.ask("result", name="foreign")
    assert kind == "CacheValueError" and "names cluster 1" in message
    assert decode.ask("wrong", blocks=BLOCKS, content=2) == [] and readers(prefill) == [()]


def test_a_lease_does_not_outlive_the_manager_that_granted_it(partners):
    owner = partners(1, "127.0.0.1:0")
    owner.ask("register")
    lease = owner.ask("lease", blocks=BLOCKS, ttl=60.0)
    address = owner.address
    owner.signal(signal.SIGKILL)
    owner.process.wait(20)
    successor, reader = partners(1, address), partners(2)
    successor.ask("register")
    reader.ask("link", cluster_id=1, address=address)
    reader.ask("register")
    reader.ask("pull", name="pull", cluster_id=1, blocks=BLOCKS, lease=lease, wait=False)
    kind, message = reader.ask("result", name="pull")
    assert kind == "LeaseExpiredError" and "restarted" in message


def test_pulls_within_the_manager_are_counted_like_those_of_readers(prefill):
    desc = cc.CacheDesc(partner.TENSORS, [partner.BLOCKS, partner.BLOCK_BYTES], cc.DataType.DT_UINT8)
    made = [prefill.backend.allocate(desc.size, cc.Placement.DEVICE).address for _ in range(partner.TENSORS)]
    target = prefill.register_blocks_cache(desc, made)
    lease, go = prefill.lease(prefill.cache, BLOCKS, 60.0), threading.Event()
    key = cc.BlocksCacheKey(1)
    pull = threading.Thread(
        target=prefill.pull_blocks, args=(key, target, BLOCKS, BLOCKS), kwargs={"lease": lease, "after": go}
    )
    pull.start()
    until(lambda: readers(prefill) == [(1,)])
    with pytest.raises(cc.CacheBusyError):
        prefill.release_lease(lease, timeout=0.1)
    go.set()
    prefill.release_lease(lease, timeout=20)
    pull.join(20)
    assert partner.wrong(made, BLOCKS, 1) == []
    with pytest.raises(cc.LeaseExpiredError):
        prefill.pull_blocks(key, target, BLOCKS, BLOCKS, lease=lease)


@pytest.mark.parametrize(
    ("blocks", "ttl", "error", "message"),
    [
        ([], 1.0, cc.CacheValueError, "blocks"),
        ([partner.BLOCKS], 1.0, cc.CacheValueError, rf"blocks\[0\] is {partner.BLOCKS}"),
        ([3, 3], 1.0, cc.CacheValueError, "blocks"),
        ([True], 1.0, cc.CacheTypeError, "blocks"),
        (None, 1.0, cc.MissingArgumentError, "blocks"),
        ([1], 0, cc.CacheValueError, "ttl is 0"),
        ([1], float("nan"), cc.CacheValueError, "ttl"),
        ([1], None, cc.MissingArgumentError, "ttl"),
    ],
)
def test_what_cannot_be_leased_is_refused(prefill, blocks, ttl, error, message):
    with pytest.raises(error, match=message):
        prefill.lease(prefill.cache, blocks, ttl)
    assert prefill.leases == ()


# --- notifications -----------------------------------------------------------------------------------------------


def taken(manager):
    return [(item.cluster_id, item.name, item.payload) for item in manager.notifications()]


def test_one_link_notifies_both_ways(prefill, decode):
    assert decode.ask("notify", cluster_id=1, name="done with request 7", payload="7") == ["done", ""]
    assert taken(prefill) == [(2, "done with request 7", b"7")]
    prefill.notify(2, "expired", b"request 8")
    assert decode.ask("notifications", seconds=20) == [[1, "expired", "request 8"]]


def test_a_notification_follows_the_transfers_that_were_started_before(prefill, decode):
    leased_pull(prefill, decode)
    decode.ask("go_when_notified", name="pull")
    assert decode.ask("notify", cluster_id=1, name="too early", timeout=0.3)[0] == "CacheTimeoutError"
    decode.post("notify", cluster_id=1, name="have it")
    assert prefill.wait_notification(0.3) is None
    prefill.notify(2, "go")  # a transfer of the peer does not hold this side up; it lets the pull begin
    item = prefill.wait_notification(30)
    assert item.name == "have it"
    assert decode.answer() == ["done", ""]
    assert decode.ask("result", name="pull") == ["done", ""]
    assert decode.ask("wrong", blocks=BLOCKS, content=1) == []


def test_who_is_notified_has_what_was_pushed_before(prefill, partners):
    peer = partners(2, "127.0.0.1:0")
    peer.ask("register")
    prefill.link(2, peer.address, timeout=20)
    go = threading.Event()
    for content in range(10, 20):
        partner.fill(prefill.addresses, content)
        pushed = prefill.push_blocks_async(cc.BlocksCacheKey(2), prefill.cache, BLOCKS, BLOCKS, after=go)
        if not go.is_set():
            with pytest.raises(cc.CacheTimeoutError, match="started before"):
                prefill.notify(2, "too early", timeout=0.1)
            go.set()
        prefill.notify(2, str(content))
        assert pushed.done
        assert peer.ask("notifications") == [[1, str(content), ""]]
        assert peer.ask("wrong", blocks=BLOCKS, content=content) == []


def test_after_a_restart_notifications_are_those_of_the_new_life(prefill, decode, partners):
    decode.ask("notify", cluster_id=1, name="first life")
    decode.signal(signal.SIGKILL)
    decode.process.wait(20)
    successor = partners(2)
    successor.ask("link", cluster_id=1, address=prefill.address)
    successor.ask("notify", cluster_id=1, name="second life")
    first, second = prefill.notifications()
    assert (first.name, second.name) == ("first life", "second life") and first.incarnation != second.incarnation
    prefill.notify(2, "for the second life")
    assert successor.ask("notifications", seconds=20) == [[1, "for the second life", ""]]


def test_a_peer_that_dies_before_it_answers_leaves_the_sender_with_a_known_uncertainty(prefill, decode):
    stop(decode)
    errors = []

    def send():
        try:
            prefill.notify(2, "into the dark", timeout=60)
        except cc.CacheError as error:
            errors.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    until(lambda: any(s.notices._under_way for s in prefill._peers._sessions._sessions))
    decode.signal(signal.SIGKILL)
    sender.join(30)
    assert isinstance(errors[0], cc.LinkLostError) and "may or may not have arrived" in str(errors[0])
    with pytest.raises(cc.NotLinkedError):
        prefill.notify(2, "nobody there", timeout=10)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1, "x"), cc.CacheValueError, "this manager's own"),
        ((3, "x"), cc.NotLinkedError, "cluster 3 cannot be notified"),
        ((2, ""), cc.CacheValueError, "name has 0 characters; it must have 1 to 200"),
        ((2, "x" * 201), cc.CacheValueError, "name has 201 characters"),
        ((2, "\ud800"), cc.CacheValueError, "UTF-8"),
        ((2, b"x"), cc.CacheTypeError, "name"),
        ((2, "x", bytes((256 << 10) + 1)), cc.CacheValueError, "payload has 262145 bytes; at most 262144"),
        ((2, "x", "text"), cc.CacheTypeError, "payload"),
        ((2, "x", None), cc.MissingArgumentError, "payload"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(prefill, arguments, error, message):
    with pytest.raises(error, match=message):
        prefill.notify(*arguments, timeout=5)


def callback_threads(cluster_id):
    return [thread for thread in threading.enumerate() if thread.name == f"cachecore-{cluster_id}-notifications"]


def test_a_manager_that_nobody_refers_to_any_more_ends_its_callback():
    manager = cc.CacheManager(77, backend="host")
    manager.on_notification([].append)
    assert callback_threads(77)
    del manager
    gc.collect()
    until(lambda: not callback_threads(77))


def test_closing_ends_the_callback_and_who_waits(prefill):
    received = []
    prefill.on_notification(received.append)
    with pytest.raises(cc.CacheTypeError, match="callback"):
        prefill.on_notification("text")
    prefill.on_notification(None)
    errors = []

    def wait():
        try:
            prefill.wait_notification(60)
        except cc.ManagerClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    prefill.on_notification(received.append)
    prefill.close(timeout=10)
    waiting.join(20)
    assert len(errors) == 1
    assert not callback_threads(1)
