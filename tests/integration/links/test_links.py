"""Links between real processes: engines, catalogue, retirement, identities."""

import re

import pytest


def test_the_reader_connects_its_engine_to_the_owners_regions_and_the_owner_does_nothing(linked):
    pair = linked()
    owner_pid = pair.owner.pid
    assert pair.reader.ask("calls") == [["connect", 1, f"fake/1 of {owner_pid}", [1 << 12, 2 << 12]]]
    assert pair.owner.ask("calls") == []
    assert pair.owner.ask("sessions") == [[2, "LINKED", "fake/1"]]
    assert pair.reader.ask("lookup", 1, 2) == 2


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_every_kind_of_address_can_be_linked_to(spawn, listen):
    owner = spawn(1, listen=listen)
    assert re.fullmatch(r"127\.0\.0\.1:\d+|\[::1\]:\d+", owner.address)
    reader = spawn(2)
    where = owner.address if listen.startswith(("1", "[")) else f"localhost:{owner.address.rpartition(':')[2]}"
    assert reader.ask("link", None, where)["cluster"] == 1


def test_the_best_engine_that_reaches_the_peer_is_used(spawn):
    owner = spawn(1, listen="127.0.0.1:0", engines=[["fast/1", 1], ["slow/1", 9], ["rare/1", 5]])
    reader = spawn(2, engines=[["slow/1", 1], ["fast/1", 8], ["other/1", 99]])
    assert reader.ask("link", 1, owner.address)["wire_id"] == "fast/1"
    blocked = spawn(3, engines=[["slow/1", 1], ["fast/1", 8, "no permission"]])
    assert blocked.ask("link", 1, owner.address)["wire_id"] == "slow/1"
    assert blocked.ask("calls", "fast/1")[0][0] == "connect"


def test_a_link_no_engine_can_serve_fails_with_every_reason_and_leaves_nothing(spawn):
    owner = spawn(1, listen="127.0.0.1:0", engines=[["a/1", 1], ["b/1", 1]])
    reader = spawn(2, engines=[["a/1", 2, "no permission"], ["b/1", 1, "another machine"]])
    for _ in range(2):
        with pytest.raises(Exception, match=r"LinkFailedError: .*a/1\): no permission; b/1 .*another machine"):
            reader.ask("link", 1, owner.address)
        with pytest.raises(Exception, match="NotLinkedError"):
            reader.ask("state", 1)
        assert owner.ask("sessions") == []


def test_a_cache_registered_after_the_link_is_found_and_one_taken_back_is_not(linked):
    pair = linked()
    pair.owner.ask("publish", 3)
    assert pair.reader.ask("lookup", 1, 3) == 3
    assert pair.reader.ask("calls")[1:] == [["update", [3 << 12], []]]
    pair.owner.ask("retire", 3)
    with pytest.raises(Exception, match=r"CacheNotFoundError: .*keys that exist: BlocksCacheKey\(model_id=1\)"):
        pair.reader.ask("lookup", 1, 3)
    assert pair.reader.ask("calls")[2:] == [["update", [], [3 << 12]]]


def test_retirement_waits_for_the_reader_that_reads(spawn):
    owner = spawn(1, listen="127.0.0.1:0")
    owner.ask("publish", 1)
    readers = [spawn(number) for number in (2, 3)]
    for reader in readers:
        reader.ask("link", 1, owner.address)
    readers[1].ask("begin", 1, 1)
    with pytest.raises(Exception, match=r"CacheBusyError: caches \[1\] .*cluster 3 \(process \d+ on .*LINKED\)"):
        owner.ask("retire", 1, seconds=0.3)
    with pytest.raises(Exception, match=r"CacheNotFoundError: .*being unregistered"):
        readers[1].ask("begin", 1, 1)
    again = owner.post("retire", 1)
    readers[1].ask("end", 1, 1)
    again()
    assert owner.ask("sessions") == [[2, "LINKED", "fake/1"], [3, "LINKED", "fake/1"]]


def test_two_managers_link_to_each_other_and_unlinking_one_way_leaves_the_other(spawn):
    one, two = spawn(1, listen="127.0.0.1:0"), spawn(2, listen="[::1]:0")
    one.ask("publish", 11)
    two.ask("publish", 22)
    links = [one.post("link", 2, two.address), two.post("link", 1, one.address)]
    assert [link()["cluster"] for link in links] == [2, 1]
    assert one.ask("lookup", 2, 22) == 22 and two.ask("lookup", 1, 11) == 11
    one.ask("unlink", 2)
    assert two.ask("sessions") == [] and one.ask("calls")[-1] == ["disconnect", 2]
    assert two.ask("state", 1)["state"] == "LINKED"
    with pytest.raises(Exception, match="NotLinkedError: cluster 2 is not linked"):
        one.ask("lookup", 2, 22)


def test_identities_are_checked_on_both_sides(spawn):
    owner = spawn(1, listen="127.0.0.1:0")
    first, second = spawn(2), spawn(2)
    with pytest.raises(Exception, match=r"LinkFailedError: cluster_id is 7 .* declares cluster 1"):
        first.ask("link", 7, owner.address)
    first.ask("link", 1, owner.address)
    with pytest.raises(Exception, match="AlreadyLinkedError: cluster 1 is linked already"):
        first.ask("link", 1, owner.address)
    with pytest.raises(Exception, match="AlreadyLinkedError"):
        first.ask("link", None, owner.address)
    assert first.ask("state", 1)["state"] == "LINKED"
    with pytest.raises(Exception, match=f"LinkFailedError: .*same cluster id .*process {first.pid} "):
        second.ask("link", 1, owner.address)
    with pytest.raises(Exception, match="CacheValueError: cluster_id is 1, which is this manager's own"):
        owner.ask("link", 1, owner.address)
    with pytest.raises(Exception, match=r"LinkFailedError: .*the listener is the caller itself"):
        owner.ask("link", None, owner.address)
    namesake = spawn(1)
    with pytest.raises(Exception, match=r"LinkFailedError: .*the listener has the same cluster id"):
        namesake.ask("link", None, owner.address)
    assert first.ask("state", 1)["state"] == "LINKED"
    assert len(owner.ask("sessions")) == 1


def test_one_thread_links_at_a_time_to_one_cluster(spawn):
    owner, reader = spawn(1, listen="127.0.0.1:0"), spawn(2)
    tries = [reader.post("link", 1, owner.address) for _ in range(6)]
    results = []
    for wait in tries:
        try:
            results.append(wait()["cluster"])
        except Exception as error:
            assert "AlreadyLinkedError" in str(error)
    assert results == [1]
    assert owner.ask("sessions") == [[2, "LINKED", "fake/1"]]


def test_nobody_listening_is_an_error_at_once_and_a_taken_port_too(spawn):
    owner, reader = spawn(1, listen="127.0.0.1:0"), spawn(2)
    with pytest.raises(Exception, match=r"LinkFailedError: listen is .*Address already in use.*another port"):
        spawn(3, listen=owner.address)
    address = owner.address
    owner.ask("close")
    with pytest.raises(Exception, match=r"LinkFailedError: .*nobody listens there"):
        reader.ask("link", 1, address, limit=10)


def test_closing_an_owner_loses_its_links_with_the_reason(linked):
    pair = linked()
    assert pair.owner.ask("close")["unsafe"] == 0
    pair.reader.ask("until_state", 1, "LOST")
    with pytest.raises(Exception, match=r"LinkLostError: .*(the manager was closed|the connection is gone)"):
        pair.reader.ask("begin", 1, 1)
    assert pair.reader.until_seen(lambda seen: ["link lost", 1] in seen)
