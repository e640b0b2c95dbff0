"""The key file of loopback links. What is about other users runs only where the tests may become another user."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import zmq
import zmq.auth

from cachecore.errors import AuthenticationError
from cachecore.peers import keyfiles
from cachecore.peers.keyfiles import loopback_pair

PRINT_PAIR = "from cachecore.peers.keyfiles import loopback_pair; print(*loopback_pair())"
NOBODY = 65534


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("CACHECORE_KEY_DIR", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(keyfiles.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_the_pair_is_made_once_and_only_the_user_can_read_it(home):
    public, secret, path = loopback_pair()
    assert path == home / ".config" / "cachecore" / "loopback.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert zmq.curve_public(secret.encode()).decode() == public
    assert loopback_pair() == (public, secret, path)
    assert os.listdir(path.parent) == ["loopback.key"]
    assert zmq.auth.load_certificate(path) == (public.encode(), secret.encode())


def test_of_processes_that_start_at_once_all_get_the_same_pair(home, tmp_path):
    environment = {**os.environ, "CACHECORE_KEY_DIR": str(tmp_path / "keys")}
    processes = [
        subprocess.Popen([sys.executable, "-c", PRINT_PAIR], env=environment, stdout=subprocess.PIPE) for _ in range(6)
    ]
    answers = {process.communicate(timeout=60)[0] for process in processes}
    assert len(answers) == 1 and len(answers.pop().split()) == 3
    assert os.listdir(tmp_path / "keys") == ["loopback.key"]


def test_the_process_that_loses_the_race_takes_the_winners_file(home, monkeypatch):
    link = os.link

    def somebody_was_faster(source, target, **more):
        monkeypatch.setattr(keyfiles.os, "link", link)
        loopback_pair()
        return link(source, target, **more)

    monkeypatch.setattr(keyfiles.os, "link", somebody_was_faster)
    assert loopback_pair() == loopback_pair()


@pytest.mark.parametrize("variable", ["CACHECORE_KEY_DIR", "XDG_CONFIG_HOME"])
def test_the_environment_chooses_the_place(home, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path / "chosen"))
    expected = tmp_path / "chosen" / ("cachecore" if variable.startswith("XDG") else "")
    assert loopback_pair()[2] == expected / "loopback.key"


def test_without_a_home_a_private_folder_for_temporary_files_serves(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    path = loopback_pair()[2]
    assert path == tmp_path / "tmp" / f"cachecore-{os.geteuid()}" / "loopback.key"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not (tmp_path / "nonexistent").exists()


def test_where_nothing_can_hold_the_file_the_error_names_the_places_and_the_variable(home, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHECORE_KEY_DIR", "/proc/cachecore")
    with pytest.raises(AuthenticationError, match=r"/proc/cachecore.*set CACHECORE_KEY_DIR"):
        loopback_pair()


def make_symlink(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def other_pair(path):
    public, _ = zmq.curve_keypair()
    _, secret = zmq.curve_keypair()
    path.write_text(f'public-key = "{public.decode()}"\nsecret-key = "{secret.decode()}"\n')


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda path: path.chmod(0o640), "mode is 0640"),
        (lambda path: path.chmod(0o604), "mode is 0604"),
        (make_symlink, "symbolic link"),
        (lambda path: path.write_text(""), "no key pair"),
        (lambda path: path.write_text("public-key = short\nsecret-key = short\n"), "no key pair"),
        (other_pair, "does not belong"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "not a regular file"),
        (lambda path: path.parent.chmod(0o770), "mode 0770"),
        (lambda path: path.parent.chmod(0o702), "mode 0702"),
    ],
)
def test_a_file_somebody_else_could_have_read_or_replaced_is_refused(home, tamper, reason):
    tamper(loopback_pair()[2])
    with pytest.raises(AuthenticationError, match=reason):
        loopback_pair()


def test_a_folder_laid_out_by_somebody_else_below_tmp_is_refused(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    (tmp_path / "trap").mkdir(mode=0o700)
    (tmp_path / "tmp" / f"cachecore-{os.geteuid()}").symlink_to(tmp_path / "trap")
    with pytest.raises(AuthenticationError, match="cannot be trusted"):
        loopback_pair()
    (tmp_path / "tmp" / f"cachecore-{os.geteuid()}").unlink()
    (tmp_path / "tmp" / f"cachecore-{os.geteuid()}").mkdir(mode=0o755)
    with pytest.raises(AuthenticationError, match="mode 0755"):
        loopback_pair()


@pytest.fixture
def open_folder():
    """A folder other users can enter. pytest keeps its own from them, and closes them again at any time."""
    with tempfile.TemporaryDirectory(prefix="cachecore-test-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_user_without_a_home_gets_keys_and_nobody_elses(open_folder):
    place = open_folder
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    environment = {**os.environ, "HOME": "/nonexistent", "TMPDIR": str(place / "tmp")}
    environment.pop("CACHECORE_KEY_DIR", None)
    environment.pop("XDG_CONFIG_HOME", None)

    def pair(uid):
        # The interpreter itself may be out of that user's reach: it changes user when everything is imported.
        become = (
            f"; import os; os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid}); "
        )
        return subprocess.run(
            [sys.executable, "-c", PRINT_PAIR.replace("; ", become)],
            env=environment,
            cwd="/",
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )

    mine, again, root = pair(NOBODY), pair(NOBODY), pair(0)
    assert mine.stdout and mine.stdout == again.stdout, mine.stderr
    assert root.stdout and root.stdout.split()[0] != mine.stdout.split()[0]
    # What root prepared for nobody is not trusted by nobody.
    path = place / "tmp" / f"cachecore-{NOBODY}"
    os.chown(path, 0, 0)
    refused = pair(NOBODY)
    assert "AuthenticationError" in refused.stderr and refused.stdout == ""
