"""The npy codec against numpy's own, and samples to members and back."""

import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from schemas.errors import CacheDamaged
from schemas.sample import Sample, decode_npy, encode_json, encode_npy

DTYPES = st.sampled_from(["<f2", "<f4", "<f8", "|i1", "|u1", "<i4", "<i8", "|b1"])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=5)
ARRAYS = hnp.arrays(dtype=DTYPES, shape=SHAPES)
STREAMS = ("video", "image")


def joined(pieces) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


def saved(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def npy_with_header(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def make_sample(num_frames: int = 3, *, preview: bytes | None = b"\xff\xd8jpeg") -> Sample:
    rng = np.random.default_rng(num_frames)
    starts = np.arange(num_frames) / 2
    return Sample(
        key="abc_000007",
        features={
            "video": rng.random((num_frames, 3, 3, 8)).astype(np.float16),
            "image": rng.random((num_frames, 4, 4, 5)).astype(np.float16),
        },
        times=np.stack([starts, starts + 0.5], axis=1),
        mask=np.arange(num_frames) < 2,
        info={"video_id": "ä \n'\"", "clip_index": 7, "start_seconds": 0.1, "end_seconds": 1.5},
        preview=preview,
    )


def members_of(sample: Sample) -> dict[str, bytes]:
    return {name: joined(pieces) for name, pieces in sample.to_members()}


@given(array=ARRAYS)
def test_numpy_reads_what_encode_npy_writes(array):
    read = np.load(io.BytesIO(joined(encode_npy(array))), allow_pickle=False)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()


@given(array=ARRAYS)
def test_decode_npy_reads_what_numpy_writes(array):
    read = decode_npy(saved(array))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()


@given(array=ARRAYS)
def test_the_header_keeps_the_data_aligned_to_64_bytes(array):
    header, _ = encode_npy(array)
    assert len(header) % 64 == 0


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12, dtype=np.float16).reshape(3, 4)),
        np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::-1],
        np.arange(5, dtype=">f4"),
        np.array(3.5),
    ],
    ids=["fortran", "strided", "big-endian", "scalar"],
)
def test_any_layout_in_memory_gives_the_same_values(array):
    read = np.load(io.BytesIO(joined(encode_npy(array))), allow_pickle=False)
    assert read.shape == array.shape
    assert np.array_equal(read, array)


def test_encoding_and_decoding_make_no_copy():
    array = np.arange(1000, dtype=np.float32)
    header, data = encode_npy(array)
    assert np.shares_memory(np.frombuffer(data, np.float32), array)
    buffer = bytearray(joined([header, data]))
    assert np.shares_memory(decode_npy(buffer), np.frombuffer(buffer, np.uint8))


@pytest.mark.parametrize("dtype", ["O", "V2", [("a", "<f4"), ("b", "<i2")]])
def test_encoding_refuses_dtypes_that_are_not_plain(dtype):
    with pytest.raises(ValueError, match="cannot be stored"):
        encode_npy(np.zeros(3, dtype=dtype))


@pytest.mark.parametrize(
    "data",
    [
        saved(np.array([{"a": 1}], dtype=object), allow_pickle=True),
        pickle.dumps(np.zeros(3)),
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x02\x00\x10\x00\x00\x00" + b" " * 16,
        saved(np.asfortranarray(np.ones((2, 3)))),
        saved(np.zeros(4, np.float32)) + b"\0",
    ],
    ids=["object", "pickle", "empty", "short", "version-2", "fortran", "one-byte-more"],
)
def test_decoding_refuses_what_is_not_a_plain_npy(data):
    with pytest.raises(ValueError, match="npy"):
        decode_npy(data)


def test_decoding_refuses_bfloat16():

    data = saved(np.arange(4, dtype=np.uint16).view("V2"))
    with pytest.raises(ValueError, match="npy"):
        decode_npy(data)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70},)}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, 4)}}",
        "{'descr': 'nothing', 'fortran_order': False, 'shape': (1,)}",
        "{'fortran_order': False, 'shape': (1,)}",
        "__import__('os')",
        "[" * 200,
        "",
        "\0",
    ],
)
def test_decoding_refuses_damaged_headers(header):
    with pytest.raises(ValueError):
        decode_npy(npy_with_header(header, b"1234"))


def test_every_truncation_is_noticed():
    data = saved(np.arange(7, dtype=np.float16))
    for length in range(len(data)):
        with pytest.raises(ValueError, match="npy"):
            decode_npy(data[:length])


@pytest.mark.filterwarnings("ignore:Data type alias:DeprecationWarning")
@given(position=st.integers(0, 127), value=st.integers(0, 255))
def test_a_damaged_byte_in_the_header_is_a_value_error_or_an_array(position, value):

    data = bytearray(saved(np.arange(6, dtype=np.float16).reshape(2, 3)))
    data[position] = value
    try:
        array = decode_npy(data)
    except ValueError:
        return
    assert array.nbytes == 12


@pytest.mark.parametrize("num_frames", [1, 4])
@pytest.mark.parametrize("preview", [None, b"\xff\xd8jpeg"])
def test_a_sample_survives_its_members(num_frames, preview):
    sample = make_sample(num_frames, preview=preview)
    read = Sample.from_members(sample.key, members_of(sample), streams=STREAMS)
    assert list(read.features) == list(STREAMS)
    for name, array in sample.features.items():
        assert read.features[name].dtype == array.dtype
        assert np.array_equal(read.features[name], array)
    assert np.array_equal(read.times, sample.times)
    assert np.array_equal(read.mask, sample.mask)
    assert read.mask.dtype == np.bool_
    assert read.info == sample.info
    assert (read.key, read.preview) == (sample.key, sample.preview)


def test_members_are_in_the_order_of_their_names():
    names = [name for name, _ in make_sample().to_members()]
    assert names == ["image.npy", "json", "mask.npy", "preview.jpg", "time.npy", "video.npy"]


def test_features_come_in_the_order_asked_for():
    members = members_of(make_sample())
    for streams in (("video", "image"), ("image", "video"), ("image",)):
        read = Sample.from_members("k", members, streams=streams)
        assert tuple(read.features) == streams


def test_members_of_others_are_left_alone():
    members = members_of(make_sample()) | {"txt": b"caption", "pyd": b"\x80"}
    assert Sample.from_members("k", members, streams=STREAMS).info["clip_index"] == 7


@pytest.mark.parametrize("name", ["image.npy", "video.npy", "time.npy", "mask.npy", "json"])
def test_a_missing_member_is_named(name):
    members = members_of(make_sample())
    del members[name]
    with pytest.raises(CacheDamaged, match=f"abc_000007: member '{name}' is missing"):
        Sample.from_members("abc_000007", members, streams=STREAMS)


@pytest.mark.parametrize("name", ["image.npy", "video.npy", "time.npy", "mask.npy", "json"])
def test_a_truncated_member_is_damage(name):
    members = members_of(make_sample())
    members[name] = members[name][:-3]
    with pytest.raises(CacheDamaged, match="abc_000007: "):
        Sample.from_members("abc_000007", members, streams=STREAMS)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("image.npy", saved(np.zeros((3, 4), np.float16))),
        ("image.npy", pickle.dumps(np.zeros(3))),
        ("image.npy", npy_with_header("{'descr': '<f4', 'shape': (1,)}")),
        ("time.npy", saved(np.zeros((3, 2), np.float32))),
        ("time.npy", saved(np.zeros((2, 2)))),
        ("mask.npy", saved(np.zeros(4, np.bool_))),
        ("mask.npy", saved(np.zeros(3, np.float64))),
        ("mask.npy", saved(np.array(True))),
        ("json", b"\xff\xfe"),
        ("json", b"[1, 2]"),
    ],
)
def test_a_member_of_the_wrong_kind_is_damage(name, data):
    members = members_of(make_sample()) | {name: data}
    with pytest.raises(CacheDamaged, match="abc_000007: "):
        Sample.from_members("abc_000007", members, streams=STREAMS)


def test_a_sample_refuses_features_that_are_not_a_grid():
    with pytest.raises(ValueError, match="expected \\(T, H, W, D\\)"):
        Sample(
            key="k",
            features={"image": np.zeros((3, 4), np.float16)},
            times=np.zeros((3, 2)),
            mask=np.ones(3, np.bool_),
            info={},
        )


def test_repr_shows_shapes_and_seconds_and_no_data():
    assert repr(make_sample()) == (
        "Sample('abc_000007', [0.1, 1.5) s, video (3, 3, 3, 8) float16, image (3, 4, 4, 5) float16)"
    )


def test_json_of_a_sample_does_not_depend_on_the_order_of_its_keys():
    assert encode_json({"b": 1, "a": "é"}) == encode_json({"a": "é", "b": 1})
    assert json.loads(encode_json({"b": 1, "a": "é"})) == {"a": "é", "b": 1}


def test_json_of_a_sample_refuses_nan():
    with pytest.raises(ValueError, match="JSON"):
        encode_json({"start_seconds": float("nan")})
