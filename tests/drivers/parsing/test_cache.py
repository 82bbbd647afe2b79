"""The on-disk cache: trusted for nothing that it cannot prove, bounded, shared."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvproxy_model.drivers.parsing import cache as cache_module
from nvproxy_model.drivers.parsing.cache import Cache, cache_directory
from nvproxy_model.drivers.sources import open_source
from tests.drivers.driver_world import tree, write
from tests.effort import examples

KEY, OTHER = hashlib.sha256(b"1").hexdigest(), hashlib.sha256(b"2").hexdigest()


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    assert cache.get(KEY) is None
    cache.put(KEY, b"x\ny")
    assert Cache(tmp_path / "c").get(KEY) == b"x\ny"
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@given(body=st.binary(max_size=200), damage=st.binary(max_size=300))
def test_a_damaged_entry_is_removed_and_not_trusted(body: bytes, damage: bytes, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    cache.put(KEY, body)
    path = tmp_path / "c" / KEY
    good = path.read_bytes()
    path.write_bytes(damage)
    if damage != good:
        assert cache.get(KEY) is None
        assert not path.exists()


def test_an_entry_that_is_not_a_file_is_removed_and_not_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    path = tmp_path / "c" / KEY
    os.mkfifo(path)
    assert (cache.get(KEY), os.path.lexists(path)) == (None, False)
    path.symlink_to("/dev/zero")
    assert (cache.get(KEY), os.path.lexists(path)) == (None, False)


def test_an_entry_of_another_key_is_not_trusted(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    cache.put(KEY, b"mine")
    os.rename(tmp_path / "c" / KEY, tmp_path / "c" / OTHER)
    assert cache.get(OTHER) is None


def test_it_is_bounded(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", limit=10_000)
    for number in range(50):
        key = hashlib.sha256(str(number).encode()).hexdigest()
        cache.put(key, bytes(1000))
        os.utime(tmp_path / "c" / key, (number, number))
    cache.trim()
    left = list((tmp_path / "c").iterdir())
    assert sum(path.stat().st_size for path in left) <= 10_000
    assert hashlib.sha256(b"49").hexdigest() in {path.name for path in left}
    cache.put(KEY, bytes(5000))
    assert cache.get(KEY) is None


def test_a_directory_of_others_or_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    for name in ("link", "open", "file"):
        cache = Cache(tmp_path / name)
        cache.put(KEY, b"x")
        assert cache.get(KEY) is None
    assert list((tmp_path / "real").iterdir()) == []


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVPROXY_CACHE_DIR", "")
    assert cache_directory() is None
    monkeypatch.delenv("NVPROXY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_directory() == Path("/x/nvproxy-model")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() is None


def _fill(directory: str, start: int) -> None:
    cache = Cache(Path(directory), limit=200_000)
    for number in range(200):
        key = hashlib.sha256(str((start + number) % 20).encode()).hexdigest()
        body = key.encode() * 20
        cache.put(key, body)
        got = cache.get(key)
        assert got is None or got == body
        cache.trim()


def test_two_processes_share_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_fill, args=(str(tmp_path / "c"), start)) for start in (0, 10, 5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert {path.name[0] == "." for path in (tmp_path / "c").iterdir()} == {False}


def test_a_source_reads_through_it_and_rebuilds_what_is_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVPROXY_CACHE_DIR", str(tmp_path / "c"))
    path = write(tmp_path / "t", tree("typedef struct { NvU32 a; } S;\n#define N 3\n", "1.1"))
    for damage in (False, True, False):
        if damage:
            for entry in (tmp_path / "c").iterdir():
                entry.write_bytes(entry.read_bytes()[:-1] + b"!")
        with open_source(path) as source:
            release = source.release("1.1")
        assert (release.constants["N"], release.structs["S"].size) == (3, 4)
    write(path, tree("typedef struct { NvU64 a; } S;\n#define N 3\n", "1.1"))
    with open_source(path) as source:
        assert source.release("1.1").structs["S"].size == 8
    assert cache_module.MAX_CACHE <= 256 << 20
