"""The tar: bytes that every reader takes, and places that point at them."""

import hashlib
import io
import os
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline import packing
from pipeline.packing import TarWriter, encode_preview
from schemas.errors import StorageError
from schemas.sample import Sample, decode_npy


def make_sample(key: str, *, cells: int = 3, num_frames: int = 2, preview: bytes | None = b"jpg"):
    rng = np.random.default_rng(sum(key.encode()))
    starts = np.arange(num_frames, dtype=np.float64)
    return Sample(
        key=key,
        features={"image": rng.random((num_frames, cells, 1, 5)).astype(np.float16)},
        times=np.stack([starts, starts + 1], axis=1),
        mask=np.ones(num_frames, np.bool_),
        info={"video_id": key, "clip_index": 0},
        preview=preview,
    )


def pack(path, samples):
    with TarWriter(path) as writer:
        places = [writer.add(sample) for sample in samples]
        digest, num_bytes = writer.finish()
    return places, digest, num_bytes


def members_of(path) -> dict[str, bytes]:
    with tarfile.open(path, "r:") as tar:
        return {info.name: tar.extractfile(info).read() for info in tar.getmembers()}


SAMPLES = [make_sample("a_000000"), make_sample("a_000001", cells=40), make_sample("b-_000000")]


def test_the_standard_library_reads_every_member(tmp_path):
    pack(tmp_path / "s.tar", SAMPLES)
    expected = {
        f"{sample.key}.{name}": b"".join(bytes(part) for part in parts)
        for sample in SAMPLES
        for name, parts in sample.to_members()
    }
    assert members_of(tmp_path / "s.tar") == expected


def test_headers_hold_nothing_of_the_machine_or_the_hour(tmp_path):
    pack(tmp_path / "s.tar", SAMPLES)
    with tarfile.open(tmp_path / "s.tar", "r:") as tar:
        infos = tar.getmembers()
    assert len(infos) == 15
    for info in infos:
        assert (info.mtime, info.uid, info.gid, info.uname, info.gname) == (0, 0, 0, "", "")
        assert (info.mode, info.isreg(), info.pax_headers) == (0o644, True, {})


def test_members_are_in_the_order_of_their_names(tmp_path):
    pack(tmp_path / "s.tar", SAMPLES)
    with tarfile.open(tmp_path / "s.tar", "r:") as tar:
        names = tar.getnames()
    assert names == sorted(names)


def test_headers_are_those_that_the_standard_library_writes(tmp_path):
    pack(tmp_path / "s.tar", SAMPLES)
    again = io.BytesIO()
    with tarfile.open(fileobj=again, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members_of(tmp_path / "s.tar").items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    ours = (tmp_path / "s.tar").read_bytes()
    assert again.getvalue()[: len(ours)] == ours
    assert not any(again.getvalue()[len(ours) :])


def test_the_digest_and_size_are_those_of_the_file(tmp_path):
    _, digest, num_bytes = pack(tmp_path / "s.tar", SAMPLES)
    data = (tmp_path / "s.tar").read_bytes()
    assert (digest, num_bytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert data.endswith(bytes(1024))
    assert num_bytes % 512 == 0


def test_places_point_at_the_data_and_samples_lie_back_to_back(tmp_path):
    places, _, num_bytes = pack(tmp_path / "s.tar", SAMPLES)
    data = (tmp_path / "s.tar").read_bytes()
    offset = 0
    for sample, place in zip(SAMPLES, places, strict=True):
        assert place.offset == offset
        offset += place.num_bytes
        for name, (start, size) in place.members.items():
            assert place.offset < start < start + size <= offset
            expected = b"".join(bytes(part) for part in dict(sample.to_members())[name])
            assert data[start : start + size] == expected
    assert offset == num_bytes - 1024


def test_the_same_samples_give_the_same_bytes(tmp_path):
    digests = {pack(tmp_path / name, SAMPLES)[1] for name in ("1.tar", "2.tar")}
    assert len(digests) == 1


@settings(max_examples=30)
@given(
    before=st.integers(0, 2),
    forgotten=st.lists(st.integers(1, 60), max_size=3),
    after=st.integers(0, 2),
)
def test_what_is_gone_back_on_was_never_written(tmp_path_factory, before, forgotten, after):
    folder = tmp_path_factory.mktemp("tars")
    kept = [make_sample(f"k_{n:06d}", cells=n + 1) for n in range(before + after)]
    with TarWriter(folder / "back.tar") as writer:
        places = [writer.add(sample) for sample in kept[:before]]
        mark = writer.mark()
        for number, cells in enumerate(forgotten):
            writer.add(make_sample(f"x_{number:06d}", cells=cells))
        writer.go_back(mark)
        places += [writer.add(sample) for sample in kept[before:]]
        digest, num_bytes = writer.finish()
    assert (places, digest, num_bytes) == pack(folder / "never.tar", kept)
    assert (folder / "back.tar").read_bytes() == (folder / "never.tar").read_bytes()


def test_one_mark_serves_several_times(tmp_path):
    with TarWriter(tmp_path / "s.tar") as writer:
        writer.add(SAMPLES[0])
        mark = writer.mark()
        for _ in range(2):
            writer.add(SAMPLES[1])
            writer.go_back(mark)
        digest, _ = writer.finish()
    assert digest == pack(tmp_path / "never.tar", SAMPLES[:1])[1]


def test_an_array_may_change_after_the_next_call(tmp_path):
    features = np.zeros((1, 64, 64, 64), np.float16)
    samples = [
        Sample(
            key=f"a_{number:06d}",
            features={"image": features},
            times=np.zeros((1, 2)),
            mask=np.ones(1, np.bool_),
            info={},
        )
        for number in range(2)
    ]
    with TarWriter(tmp_path / "s.tar") as writer:
        writer.add(samples[0])
        writer.add(samples[1])
        writer.mark()  # waits
        features += 1
        digest, _ = writer.finish()
    data = (tmp_path / "s.tar").read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    assert not decode_npy(members_of(tmp_path / "s.tar")["a_000001.image.npy"]).any()


def test_a_large_sample_is_whole(tmp_path):
    large = make_sample("a_000000", cells=3_000_000)  # 60 MB
    (place,), digest, num_bytes = pack(tmp_path / "s.tar", [large])
    assert num_bytes > 60_000_000
    with (tmp_path / "s.tar").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
        start, size = place.members["image.npy"]
        file.seek(start)
        assert np.array_equal(decode_npy(file.read(size)), large.features["image"])


def test_a_disk_that_takes_a_part_of_a_write_gets_the_rest(tmp_path, monkeypatch):
    whole = pack(tmp_path / "whole.tar", SAMPLES)
    write = os.write
    monkeypatch.setattr(packing.os, "writev", lambda fd, parts: write(fd, bytes(parts[0])[:100]))
    monkeypatch.setattr(packing.os, "write", lambda fd, data: write(fd, data[:1000]))
    assert pack(tmp_path / "parts.tar", SAMPLES) == whole
    assert (tmp_path / "parts.tar").read_bytes() == (tmp_path / "whole.tar").read_bytes()


def test_more_pieces_than_one_system_call_takes_are_all_written(tmp_path):
    times, mask = np.zeros((1, 2)), np.ones(1, np.bool_)
    names = [f"s{number:04d}" for number in range(600)]
    features = {name: np.full((1, 1, 1, 1), n, np.float16) for n, name in enumerate(names)}
    sample = Sample(key="a_000000", features=features, times=times, mask=mask, info={})
    pack(tmp_path / "s.tar", [sample])
    members = members_of(tmp_path / "s.tar")
    assert len(members) == 603
    assert decode_npy(members["a_000000.s0599.npy"]).item() == 599


def test_a_member_name_that_a_tar_cannot_hold_is_refused(tmp_path):
    too_long = pytest.raises(ValueError, match="longer than 100 characters")
    with TarWriter(tmp_path / "s.tar") as writer, too_long:
        writer.add(make_sample("k" * 89))  # + ".preview.jpg" = 101


def test_the_longest_name_that_fits_is_read_back(tmp_path):
    sample = make_sample("k" * 88)  # + ".preview.jpg" = 100
    pack(tmp_path / "s.tar", [sample])
    assert "k" * 88 + ".preview.jpg" in members_of(tmp_path / "s.tar")


def test_a_key_that_is_not_plain_is_refused(tmp_path):
    with TarWriter(tmp_path / "s.tar") as writer, pytest.raises(ValueError, match="ascii"):
        writer.add(make_sample("é_000000"))


def test_an_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "s.tar").write_bytes(b"old")
    with pytest.raises(StorageError, match="File exists"):
        TarWriter(tmp_path / "s.tar")
    assert (tmp_path / "s.tar").read_bytes() == b"old"


def test_a_tar_without_samples_is_an_empty_tar(tmp_path):
    _, digest, num_bytes = pack(tmp_path / "s.tar", [])
    assert (digest, num_bytes) == (hashlib.sha256(bytes(1024)).hexdigest(), 1024)
    assert members_of(tmp_path / "s.tar") == {}


def test_a_preview_is_the_frames_side_by_side():
    pictures = np.zeros((4, 16, 24, 3), np.uint8)
    pictures[2] = (255, 0, 0)
    strip = Image.open(io.BytesIO(encode_preview(pictures)))
    assert (strip.format, strip.size) == ("JPEG", (96, 16))
    red, _, blue = strip.getpixel((60, 8))
    assert red > 200 > 100 > blue
    assert max(strip.getpixel((12, 8))) < 30


def test_a_preview_has_the_same_bytes_every_time():
    pictures = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    assert encode_preview(pictures) == encode_preview(pictures.copy())
