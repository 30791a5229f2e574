"""The cache: whole entries, a size limit, least recently used first, and any number of processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.build.sources import ROOT
from workbench.core.cache import Cache, build_key
from workbench.core.env import cache_dir
from workbench.core.errors import BadRequest


@dataclass(frozen=True)
class Note:
    seconds: float


def put(cache: Cache, key: str, size: int, *, used_ago_s: float = 0) -> Path:
    with cache.building(key) as folder:
        entry = folder / "entry"
        entry.mkdir()
        (entry / "library.so").write_bytes(b"x" * size)
        path = cache.publish(key, entry, Note(1.0)).path
    os.utime(path, (time.time() - used_ago_s,) * 2)
    return path


def test_an_entry_is_found_and_everything_in_it_is_there(cache: Path) -> None:
    store = Cache(cache)
    assert store.find("a", Note) is None
    put(store, "a", 10)
    found = store.find("a", Note)
    assert found and found.value == Note(1.0) and (found.path / "library.so").stat().st_size == 10


@pytest.mark.parametrize("meta", ['{"files": {}, "seconds": 1.0, "colour": 1}', '{"files": {}}', '{"seconds": 1.0}', "[]", "3"])
def test_an_entry_of_another_kind_is_not_found_and_is_replaced(cache: Path, meta: str) -> None:
    store = Cache(cache)
    (put(store, "a", 10) / "meta.json").write_text(meta)
    assert store.find("a", Note) is None
    put(store, "a", 10)
    assert store.find("a", Note)


@pytest.mark.parametrize("instead", [b"x" * 9, b"y" * 10], ids=["half of it", "another of the same size"])
def test_another_library_in_its_place_is_not_found(cache: Path, instead: bytes) -> None:
    store = Cache(cache)
    (put(store, "a", 10) / "library.so").write_bytes(instead)
    assert store.find("a", Note) is None and not (cache / "libraries" / "a").exists()
    put(store, "a", 10)
    assert store.find("a", Note)


def test_an_entry_under_anothers_key_is_not_found(cache: Path) -> None:
    store = Cache(cache)
    entry = put(store, "a", 10)
    shutil.copytree(entry, entry.with_name("b"))
    assert store.find("b", Note) is None and store.find("a", Note)


def test_the_least_recently_used_goes_first_and_a_hit_is_a_use(cache: Path) -> None:
    store = Cache(cache)
    for age, key in ((3000, "old"), (2000, "middle"), (1000, "new")):
        put(store, key, 10_000, used_ago_s=age)
    assert store.find("old", Note)
    assert store.trim(25_000) > 10_000
    assert [bool(store.find(k, Note)) for k in ("old", "middle", "new")] == [True, False, True]


def test_what_was_used_just_now_is_spared(cache: Path) -> None:
    store = Cache(cache)
    put(store, "a", 10_000)
    assert store.trim(0) == 0 and store.find("a", Note)
    assert store.trim(0, keep_recent_s=-1) > 0 and not store.find("a", Note)


def test_publishing_keeps_the_limit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE_BYTES", "25000")
    store = Cache(cache)
    for number in range(4):
        put(store, f"k{number}", 10_000, used_ago_s=5000 - number)
    usage = store.usage()
    assert (usage.entries, usage.limit_bytes) == (2, 25_000) and usage.bytes < 25_000
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE_BYTES", "2 GB")
    with pytest.raises(BadRequest, match="KERNEL_WORKBENCH_CACHE_BYTES is '2 GB'; give a whole number of bytes."):
        store.usage()


def test_the_first_of_two_builders_wins(cache: Path) -> None:
    store = Cache(cache)
    with store.building("a") as one, store.building("a") as two:
        for number, folder in enumerate((one, two)):
            (folder / "entry").mkdir()
            (folder / "entry/library.so").write_bytes(bytes([number]))
            published = store.publish("a", folder / "entry", Note(number))
            assert published.value == Note(0.0) and (published.path / "library.so").read_bytes() == b"\0"
    assert store.usage().entries == 1 and not list((cache / "building").iterdir())


def test_a_dead_builders_folder_is_swept_and_a_living_ones_is_not(cache: Path) -> None:
    store = Cache(cache)
    program = ("import os, sys; from pathlib import Path; from workbench.core.cache import Cache\n"
               "with Cache(Path(sys.argv[1])).building('theirs'):\n"
               "    print('in', flush=True); sys.stdin.read(); os._exit(9)")
    other = subprocess.Popen([sys.executable, "-c", program, str(cache)], cwd=ROOT, text=True, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == "in\n"
    with store.building("ours"):
        assert sorted(f.name.split(".")[0] for f in (cache / "building").iterdir()) == ["ours", "theirs"]
        assert store.usage().building == 2
        assert store.clear() == 0 and len(list((cache / "building").iterdir())) == 2
    other.communicate("")
    assert len(list((cache / "building").iterdir())) == 1
    with store.building("ours"):
        assert [f.name.split(".")[0] for f in (cache / "building").iterdir()] == ["ours"]


def test_clear_removes_all_that_is_finished(cache: Path) -> None:
    store = Cache(cache)
    put(store, "a", 10)
    put(store, "b", 10)
    assert store.clear() > 20
    assert store.usage().entries == 0 and store.find("a", Note) is None


def test_many_processes_publish_find_and_trim_at_once(cache: Path) -> None:
    program = """
import sys
from dataclasses import dataclass
from pathlib import Path
from workbench.core.cache import Cache
@dataclass(frozen=True)
class Note:
    of: str
cache = Cache(Path(sys.argv[1]))
for i in range(150):
    key = f"k{i % 7}"
    found = cache.find(key, Note)
    if found is None:
        with cache.building(key) as folder:
            (folder / "entry").mkdir()
            (folder / "entry/library.so").write_bytes(key.encode() * 500)
            found = cache.publish(key, folder / "entry", Note(key))
    assert found.value.of == key, found
    cache.trim(3000, keep_recent_s=-1)
"""
    command = [sys.executable, "-c", program, str(cache)]
    workers = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(w.communicate()[1], w.returncode) for w in workers] == [("", 0)] * 4
    assert not list((cache / "building").iterdir())


def test_the_key_parts_are_separated() -> None:
    def key(source: str, flags: tuple[str, ...], arch: str = "sm_90", torch: str = "2.9") -> str:
        return build_key(source, flags, device="cuda", arch=arch, compiler="nvcc 13.0", torch=torch)

    keys = {key("a", ("b",)), key("ab", ()), key("a", ("b", "")), key("a", ("", "b")), key("a", ("b",), arch="sm_90a"),
            key("a", ("b",), torch="2.10")}
    assert len(keys) == 6


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("KERNEL_WORKBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "kernel-workbench"


def test_rubbish_in_the_place_of_an_entry_does_not_stop_a_build(cache: Path) -> None:
    store = Cache(cache)
    place = cache / "libraries" / "a"
    place.mkdir(parents=True)
    (place / "meta.json").write_text("{half a li")
    assert store.find("a", Note) is None
    put(store, "a", 10)
    assert store.find("a", Note)
