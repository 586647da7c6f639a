"""Where weights are found, and their digest, remembered for as long as it holds."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from encoders.weights import (
    HubFiles,
    Weights,
    file_sha256,
    find_weights,
    how_to_get,
    weights_sha256,
)
from schemas.errors import WeightsError

ROOT = Path(__file__).resolve().parents[2]
HUB = HubFiles(
    repo="someone/model", files=("first.bin", "second.bin"), size_bytes=3_510_000_000, licence="MIT"
)
NAMES = ("model.safetensors", "model.pt")


def make(path: Path, content: bytes = b"weights", *, age_seconds: float = 60.0) -> Path:
    """A file that was written a while ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    written = time.time() - age_seconds
    os.utime(path, (written, written))
    return path


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def record_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256.json")


def find(where: Path | str, *, hub: HubFiles | None = HUB) -> Weights:
    return find_weights(str(where), encoder="some-encoder", names=NAMES, hub=hub)


def write_parts(folder: Path, names: Any) -> None:
    make(folder / "model.safetensors.index.json", json.dumps({"weight_map": names}).encode())


@pytest.fixture
def num_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each time that a file is hashed."""
    reads: list[str] = []
    hash_file = hashlib.file_digest

    def counted(file: Any, name: str) -> Any:
        reads.append(Path(file.name).name)
        return hash_file(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return reads


class TestDigest:
    def test_a_file_is_read_once(self, tmp_path, num_reads):
        path = make(tmp_path / "my weights é.pt")
        assert [file_sha256(path) for _ in range(3)] == [digest(b"weights")] * 3
        assert num_reads == [path.name]
        assert json.loads(record_of(path).read_text())["sha256"] == digest(b"weights")
        assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, record_of(path).name]

    @pytest.mark.parametrize(
        ("content", "age_seconds"), [(b"other", 60.0), (b"weights+", 60.0), (b"weighty", 50.0)]
    )
    def test_a_changed_file_is_noticed(self, tmp_path, content, age_seconds):
        path = make(tmp_path / "w.pt")
        assert file_sha256(path) == digest(b"weights")
        make(path, content, age_seconds=age_seconds)
        assert file_sha256(path) == digest(content)

    def test_an_older_file_in_its_place_is_noticed(self, tmp_path):
        path = make(tmp_path / "w.pt")
        file_sha256(path)
        make(path, b"wEIGHTS", age_seconds=3600)
        assert file_sha256(path) == digest(b"wEIGHTS")

    @pytest.mark.parametrize("age_seconds", [0.0, 1.0, -3600.0])
    def test_a_file_that_was_just_written_is_not_remembered(self, tmp_path, age_seconds):
        path = make(tmp_path / "w.pt", age_seconds=age_seconds)
        assert file_sha256(path) == digest(b"weights")
        assert not record_of(path).exists()

    def test_where_nothing_can_be_written_a_process_remembers_for_itself(
        self, tmp_path, monkeypatch, num_reads
    ):
        def refuse(self: Path, *_: Any, **__: Any) -> int:
            raise PermissionError(13, "Permission denied", str(self))

        path = make(tmp_path / "w.pt")
        monkeypatch.setattr(Path, "write_text", refuse)
        assert [file_sha256(path) for _ in range(2)] == [digest(b"weights")] * 2
        assert len(num_reads) == 1
        assert list(tmp_path.iterdir()) == [path]
        make(path, b"wEIGHTS", age_seconds=50.0)
        assert file_sha256(path) == digest(b"wEIGHTS")

    def test_other_content_of_the_same_size_and_mtime_is_noticed(self, tmp_path):
        path = make(tmp_path / "w.pt")
        before = path.stat()
        assert file_sha256(path) == digest(b"weights")
        time.sleep(0.02)  # a tick of the file system's clock
        path.write_bytes(b"wEIGHTS")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        assert file_sha256(path) == digest(b"wEIGHTS")

    def test_a_file_that_changes_while_it_is_read_is_refused(self, tmp_path, monkeypatch):
        path = make(tmp_path / "w.pt")
        hash_file = hashlib.file_digest

        def hash_and_change(file: Any, name: str) -> Any:
            value = hash_file(file, name)
            make(path, b"longer than before")
            return value

        monkeypatch.setattr(hashlib, "file_digest", hash_and_change)
        with pytest.raises(WeightsError, match="changed while it was read") as caught:
            file_sha256(path)
        assert caught.value.hint == "try again"
        assert not record_of(path).exists()

    @pytest.mark.parametrize(
        "damage",
        [
            "",
            "{",
            "[]",
            "null",
            '{"state": STATE}',
            '{"state": STATE, "sha256": 7}',
            '{"state": STATE, "sha256": "abc"}',
            '{"sha256": "DIGEST"}',
            '{"state": [7], "sha256": "DIGEST"}',
        ],
    )
    def test_a_damaged_record_is_written_anew(self, tmp_path, damage):
        path = make(tmp_path / "w.pt")
        file_sha256(path)
        state = json.dumps(json.loads(record_of(path).read_text())["state"])
        lie = damage.replace("STATE", state).replace("DIGEST", "0" * 64)
        record_of(path).write_text(lie)
        assert file_sha256(path) == digest(b"weights")
        assert json.loads(record_of(path).read_text())["sha256"] == digest(b"weights")

    def test_a_file_that_cannot_be_read_is_said_in_a_sentence(self, tmp_path):
        with pytest.raises(WeightsError, match="cannot be read: No such file"):
            file_sha256(tmp_path / "none.pt")
        with pytest.raises(WeightsError, match="cannot be read: Is a directory"):
            file_sha256(tmp_path)

    def test_of_parts_it_depends_on_each_name_and_content(self, tmp_path):
        first, second = make(tmp_path / "a.safetensors", b"1"), make(tmp_path / "b.safetensors")
        one = Weights(paths=(first,)).sha256()
        both = Weights(paths=(first, second)).sha256()
        assert one == digest(b"1")
        lines = f"{digest(b'1')}  a.safetensors\n{digest(b'weights')}  b.safetensors\n"
        assert both == digest(lines.encode())
        assert Weights(paths=()).sha256() == "random"

    def test_it_is_empty_where_no_weights_are_named(self):
        assert weights_sha256("", encoder="e", names=NAMES, hub=HUB) == ""
        assert weights_sha256("random", encoder="e", names=NAMES, hub=HUB) == "random"


class TestPlaces:
    def test_a_file_is_taken_whatever_its_name(self, tmp_path):
        path = make(tmp_path / "two words" / "my file")
        assert find(path).paths == (path,)

    def test_a_home_folder_may_be_named_by_its_sign(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        path = make(tmp_path / "w.pt")
        assert find("~/w.pt").paths == (path,)
        with pytest.raises(WeightsError, match="~nobody-of-that-name/w: cannot be read"):
            find("~nobody-of-that-name/w")

    def test_in_a_folder_the_first_known_name_is_taken(self, tmp_path):
        last = make(tmp_path / NAMES[1])
        make(tmp_path / "other.pt")
        assert find(tmp_path).paths == (last,)
        first = make(tmp_path / NAMES[0])
        assert find(tmp_path).paths == (first,)

    def test_a_folder_without_a_known_name_shows_what_there_is(self, tmp_path):
        with pytest.raises(WeightsError, match=r"there is nothing$"):
            find(tmp_path)
        for index in range(11):
            make(tmp_path / f"{index:02}.bin")
        (tmp_path / NAMES[0]).mkdir()
        with pytest.raises(WeightsError, match=re.escape("07.bin and 4 more")) as caught:
            find(tmp_path)
        assert "none of model.safetensors, model.pt in" in caught.value.message

    def test_parts_are_those_of_the_list(self, tmp_path):
        paths = [make(tmp_path / f"model-{i}-of-2.safetensors") for i in (1, 2)]
        make(tmp_path / "model-3-of-2.safetensors")
        write_parts(tmp_path, {"b": paths[1].name, "a": paths[0].name, "c": paths[1].name})
        assert find(tmp_path).paths == tuple(paths)

    @pytest.mark.parametrize("name", ["../x", "/x", "..", ".", "", "sub/x", "missing", 7])
    def test_a_list_of_parts_cannot_lead_elsewhere(self, tmp_path, name):
        make(tmp_path / "x")
        make(tmp_path / "folder" / "sub" / "x")
        write_parts(tmp_path / "folder", {"a": name})
        with pytest.raises(WeightsError, match=re.escape(f"names {name!r}, which is not")):
            find(tmp_path / "folder")

    @pytest.mark.parametrize("names", [{}, [], None, 7, {"a": ["x"]}, {"a": "x", "b": 7}])
    def test_a_list_of_parts_that_names_none_never_means_random_weights(self, tmp_path, names):
        make(tmp_path / "x")
        write_parts(tmp_path, names)
        with pytest.raises(WeightsError, match=r"index\.json: (names no part|not a list of parts)"):
            find(tmp_path)

    def test_a_damaged_list_of_parts_is_refused(self, tmp_path):
        make(tmp_path / "model.safetensors.index.json", b"[" * 100_000)
        with pytest.raises(WeightsError, match="not a list of parts of weights"):
            find(tmp_path)

    def test_a_place_that_is_not_there_says_how_to_get_the_weights(self, tmp_path):
        with pytest.raises(WeightsError, match="weights of some-encoder: no file or folder") as e:
            find(tmp_path / "none")
        assert e.value.hint == how_to_get(HUB)

    @pytest.mark.parametrize("where", ["x" * 5000, "a\0b"])
    def test_what_no_file_can_be_called_is_refused(self, where):
        with pytest.raises(WeightsError):
            find(where)

    def test_a_place_that_may_not_be_looked_at_is_said_in_a_sentence(self, tmp_path, monkeypatch):
        def refuse(self: Path) -> bool:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "is_file", refuse)
        with pytest.raises(WeightsError, match="cannot be read: Permission denied"):
            find(tmp_path)


class FakeHub:
    """In place of huggingface_hub.hf_hub_download."""

    def __init__(self, *, local: dict[str, str], remote: dict[str, Any]) -> None:
        self.local, self.remote = local, remote
        self.asked: list[str] = []

    def __call__(self, repo: str, name: str, *, local_files_only: bool = False) -> str:
        from huggingface_hub.errors import LocalEntryNotFoundError

        assert repo == HUB.repo
        if name in self.local:
            return self.local[name]
        if local_files_only:
            raise LocalEntryNotFoundError("not downloaded yet")
        self.asked.append(name)
        answer = self.remote[name]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


class TestHub:
    @pytest.fixture
    def hub(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def use(**content: Any) -> FakeHub:
            fake = FakeHub(**{"local": {}, "remote": {}} | content)
            monkeypatch.setattr("huggingface_hub.hf_hub_download", fake)
            return fake

        return use

    def test_what_was_downloaded_before_needs_no_network(self, hub):
        fake = hub(local={"second.bin": "/cache/second.bin"})
        assert find("hub").paths == (Path("/cache/second.bin"),)
        assert fake.asked == []

    def test_a_name_that_is_not_there_leads_to_the_next(self, hub):
        from huggingface_hub.errors import EntryNotFoundError

        remote = {"first.bin": EntryNotFoundError("404"), "second.bin": "/cache/second.bin"}
        fake = hub(remote=remote)
        assert find("hub").paths == (Path("/cache/second.bin"),)
        assert fake.asked == ["first.bin", "second.bin"]

    def test_without_a_network_one_try_is_enough(self, hub):
        from huggingface_hub.errors import LocalEntryNotFoundError

        fake = hub(remote={"first.bin": LocalEntryNotFoundError("no connection\nmore of it")})
        with pytest.raises(WeightsError) as caught:
            find("hub")
        message = "some-encoder: someone/model could not be downloaded: no connection"
        assert caught.value.message == message
        assert fake.asked == ["first.bin"]

    def test_a_gated_model_says_that_access_has_to_be_asked_for(self, hub):
        hub(remote={"only.bin": OSError("401")})
        gated = HubFiles(
            repo=HUB.repo, files=("only.bin",), size_bytes=1, licence="own", gated=True
        )
        with pytest.raises(WeightsError) as caught:
            find("hub", hub=gated)
        assert "It is gated: ask for access on the page of someone/model" in caught.value.hint
        assert "hub" not in how_to_get(gated)
        assert "FOLDER of someone/model (gated; own)" in how_to_get(gated)
        assert "--weights hub to download 3.5 GB from someone/model (MIT)" in how_to_get(HUB)

    def test_what_is_published_nowhere_cannot_be_downloaded(self):
        with pytest.raises(WeightsError, match="nothing of it to download"):
            find("hub", hub=None)

    def test_offline_the_command_ends_at_once_with_a_sentence(self, tmp_path):
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        start = time.monotonic()
        arguments = ["encoders", "show", "internvideo2-s14", "--weights", "hub"]
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *arguments],
            cwd=tmp_path,
            env=os.environ | offline | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        error, hint = done.stderr.splitlines()
        assert error.startswith(
            "Error: internvideo2-s14: OpenGVLab/InternVideo2_distillation_models could not be"
        )
        assert hint.startswith("Hint: download it elsewhere and give --weights FILE")
        assert time.monotonic() - start < 30
