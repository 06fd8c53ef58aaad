"""API keys: the file, the header, limits of each key, and changes of the file while the service runs."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from rerank.access.keys import CallerLimits, KeyStore, add_key, hash_of_key, read_keys
from rerank.errors import ConfigError, Unauthenticated

ANY = CallerLimits()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


@pytest.fixture
def checked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store looks at its file in each call, and not once per second."""
    monkeypatch.setattr("rerank.access.keys._CHECK_S", 0.0)


def bearer(key: str) -> str:
    return f"Bearer {key}"


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "Bearer wrong", "Bearer \udcff", "Bearer " + "x" * 9999],
)
def test_missing_malformed_and_unknown_keys_are_refused_without_an_echo(path, header):
    add_key(path, "frontend", ANY)
    with pytest.raises(Unauthenticated) as caught:
        KeyStore(path).authenticate(header)
    assert "wrong" not in str(caught.value)


def test_key_of_another_scheme_is_refused_although_it_is_known(path):
    key = add_key(path, "frontend", ANY)
    store = KeyStore(path)
    assert store.authenticate(f"BEARER  {key} ").name == "frontend"
    for scheme in ("Basic", "Token"):
        with pytest.raises(Unauthenticated):
            store.authenticate(f"{scheme} {key}")


def test_hash_in_the_file_part_of_a_key_and_a_key_without_bearer_are_not_keys(path):
    key = add_key(path, "frontend", ANY)
    assert key not in path.read_text()
    (entry,) = read_keys(path)
    assert entry.sha256 == hash_of_key(key)
    for header in (key, bearer(key[:-1]), bearer(entry.sha256)):
        with pytest.raises(Unauthenticated):
            KeyStore(path).authenticate(header)


def test_file_is_private_and_keeps_its_comments_and_mode(path):
    add_key(path, "a", ANY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("# the frontend's\n" + path.read_text().rstrip("\n"))
    path.chmod(0o640)
    add_key(path, "b", CallerLimits(max_calls=3, max_queue_tokens=5000))
    assert path.read_text().startswith("# the frontend's\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [key.name for key in read_keys(path)] == ["a", "b"]
    assert (read_keys(path)[1].max_calls, read_keys(path)[1].max_queue_tokens) == (3, 5000)


def test_empty_list_has_no_keys(path, caplog):
    path.write_text("# all were revoked\n[]\n")
    assert read_keys(path) == ()
    with pytest.raises(Unauthenticated, match="unknown or was revoked"):
        KeyStore(path).authenticate("Bearer x")
    assert f"{path} is an empty list: no API key is valid, and every call is refused" in caplog.text


@pytest.mark.parametrize("text", ["", "\n", "# a comment\n", "null\n"])
def test_file_without_a_list_is_refused_as_it_would_revoke_every_key(path, text):
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"is empty; `rerank keys add NAME --keys .*` writes it, and \[\] in it says"):
        KeyStore(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {b", "line 1: while parsing a flow mapping"),
        ("name: a", "the file is a list with one dash per entry"),
        ("- {name: a}", r"line 1: \[0\]\.sha256: the setting is missing"),
        (f"- {{name: a, sha256: {'0' * 64}, max_cals: 3}}", r"\[0\]\.max_cals: unknown .*; did you mean max_calls\?"),
        ("- {name: a,\n   sha256: secret}", r"line 2: \[0\]\.sha256: should have the form"),
        (f"- {{name: a, sha256: '{'0' * 64}'}}\n" * 2, "a has several entries"),
        (f"- {{name: a, sha256: '{'0' * 64}', max_calls: 0}}", r"\[0\]\.max_calls: should be greater than 0"),
    ],
)
def test_invalid_file_is_refused_without_its_values(path, text, message):
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        KeyStore(path)
    assert "secret" not in str(caught.value)


def test_key_is_not_added_twice_nor_to_an_invalid_file_nor_under_a_bad_name(path):
    add_key(path, "a", ANY)
    before = path.read_text()
    with pytest.raises(ConfigError, match="has a key 'a' already"):
        add_key(path, "a", ANY)
    with pytest.raises(ConfigError, match="1 to 100 letters"):
        add_key(path, "a b", ANY)
    assert path.read_text() == before
    for text in ("keys: []\n", f"[{{name: a, sha256: '{'0' * 64}'}}]\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"^keys: .*: line [123]: "):
            add_key(path, "b", ANY)
        assert path.read_text() == text
    assert [child.name for child in path.parent.iterdir()] == ["keys.yaml"]


def test_keys_that_are_added_at_once_are_all_in_the_file(path):
    names = [f"caller-{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as threads:  # a lock of the file holds between threads as between processes
        told = list(threads.map(lambda name: add_key(path, name, ANY), names))
    assert {key.sha256 for key in read_keys(path)} == set(map(hash_of_key, told))


@pytest.mark.usefixtures("checked_each_time")
def test_keys_of_a_file_with_the_size_and_the_time_of_the_one_before_are_read(path):
    """As `cp -p` leaves it."""
    key = add_key(path, "a", ANY)
    before, text = path.stat(), path.read_text()
    store = KeyStore(path)
    path.write_text(text.replace("name: a", "name: b"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.authenticate(bearer(key)).name == "b"


@pytest.mark.usefixtures("checked_each_time")
def test_keys_are_added_revoked_and_restricted_while_the_service_runs(path):
    first = add_key(path, "first", ANY)
    store = KeyStore(path)
    second = add_key(path, "second", ANY)
    assert store.authenticate(bearer(second)).name == "second"
    entries = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump([entries[0] | {"max_calls": 1}]))
    with pytest.raises(Unauthenticated):
        store.authenticate(bearer(second))
    assert store.authenticate(bearer(first)).max_calls == 1


@pytest.mark.usefixtures("checked_each_time")
def test_keys_that_are_gone_are_counted_and_named_as_half_a_file_is_a_list_too(path, caplog):
    kept, *_ = [add_key(path, name, ANY) for name in ("a", "b", "c")]
    store = KeyStore(path)
    path.write_text(path.read_text().partition("- name: b")[0])
    store.authenticate(bearer(kept))
    assert f"2 of 3 API keys are gone from {path}: b, c" in caplog.text


@pytest.mark.usefixtures("checked_each_time")
@pytest.mark.parametrize("damage", ["- {name: a", None, "# all were revoked"])
def test_unreadable_file_keeps_the_keys_that_were_read(path, damage, caplog):
    key = add_key(path, "a", ANY)
    store = KeyStore(path)
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    for _ in range(3):
        assert store.authenticate(bearer(key)).name == "a"
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]  # not once per request
    assert error.endswith("; the keys that were read before stay valid")


def test_file_is_not_checked_in_every_call(path):
    key = add_key(path, "a", ANY)
    store = KeyStore(path)
    path.write_text("[]")
    assert store.authenticate(bearer(key)).name == "a"  # within a second
