"""Published files of tensors: read without unpickling, loaded key for key, copied once."""

from __future__ import annotations

import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from encoders.tensors import (
    ALIGNMENT,
    Tensors,
    as_float16_by_torch,
    count_families,
    keep_prefix,
    load_strictly,
    match_keys,
    read_tensors,
)
from encoders.weights import Weights
from schemas.compact import as_float16
from schemas.errors import WeightsError


def some_tensors(*, dtype: torch.dtype = torch.float32) -> Tensors:
    generator = torch.Generator().manual_seed(3)
    return {
        "weight": torch.randn(16, 32, generator=generator).to(dtype),
        "bias": torch.randn(16, generator=generator).to(dtype),
    }


def save(value: Any, path: Path, *, legacy: bool = False) -> Path:
    if path.suffix == ".safetensors":
        save_file(value, path)
    else:
        torch.save(value, path, _use_new_zipfile_serialization=not legacy)
    return path


def read(*paths: Path) -> Tensors:
    return read_tensors(Weights(paths=paths))


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(32, 16, device="meta")


def same(found: Tensors, expected: Tensors) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype
        for key in expected
    )


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


class TestReading:
    @pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "with a space.bin", "no-ending"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_every_format_gives_the_same_tensors(self, tmp_path, name, dtype):
        tensors = some_tensors(dtype=dtype)
        assert same(read(save(tensors, tmp_path / name)), tensors)

    def test_the_format_before_zip_is_read(self, tmp_path):
        tensors = some_tensors()
        path = save(tensors, tmp_path / "w.pt", legacy=True)
        assert path.read_bytes()[:2] != b"PK"
        assert same(read(path), tensors)

    @pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
    def test_large_files_are_mapped_and_not_read(self, tmp_path, name):
        path = save({"x": torch.zeros(1_000_000)}, tmp_path / name)
        tensors = read(path)
        assert is_mapped(path)
        del tensors
        assert not is_mapped(path)

    @pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
    def test_a_prefix_of_parallel_training_is_stripped_however_often(self, tmp_path, name):
        tensors = some_tensors()
        wrapped = {f"module.module.{key}": value for key, value in tensors.items()}
        assert same(read(save(wrapped, tmp_path / name)), tensors)

    def test_a_prefix_that_only_some_keys_have_stays(self, tmp_path):
        tensors = {"module.a": torch.ones(2), "b": torch.ones(2)}
        assert same(read(save(tensors, tmp_path / "w.pt")), tensors)
        parts = [save({key: tensors[key]}, tmp_path / f"{i}.pt") for i, key in enumerate(tensors)]
        assert same(read(*parts), tensors)

    def test_what_is_no_tensor_beside_them_is_left_out(self, tmp_path):
        tensors = some_tensors()
        more = {"epoch": 3, 7: torch.ones(1), "args": {"lr": 0.1}, "rest": [torch.ones(1)]}
        assert same(read(save(tensors | more, tmp_path / "w.pt")), tensors)

    def test_a_tensor_may_be_named_like_a_wrapper(self, tmp_path):
        tensors = {"model": torch.ones(2), "module": torch.zeros(3)}
        assert same(read(save(tensors, tmp_path / "w.pt")), tensors)

    def test_parts_are_put_together_and_none_may_repeat_another(self, tmp_path):
        tensors = some_tensors()
        parts = [
            save({key: value}, tmp_path / f"{key}.safetensors") for key, value in tensors.items()
        ]
        assert same(read(*parts), tensors)
        again = save(tensors, tmp_path / "again.safetensors")
        with pytest.raises(WeightsError, match=r"again\.safetensors: bias is also in another part"):
            read(parts[1], again)

    @pytest.mark.parametrize(
        "value", [{}, [], 7, torch.ones(2), {"a": 1}, {"model": {}}, {"model": {"a": None}}]
    )
    def test_a_file_without_tensors_by_name_is_refused(self, tmp_path, value):
        with pytest.raises(WeightsError, match="holds no tensors by name"):
            read(save(value, tmp_path / "w.pt"))

    def test_an_empty_safetensors_file_is_refused(self, tmp_path):
        with pytest.raises(WeightsError, match="holds no tensors by name"):
            read(save({}, tmp_path / "w.safetensors"))

    def test_a_wrapper_that_holds_itself_ends(self, tmp_path):
        value: dict[str, Any] = {}
        value["model"] = value
        with pytest.raises(WeightsError, match="holds no tensors by name"):
            read(save(value, tmp_path / "w.pt"))


class TestDamage:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\0",
            b"PK",
            b"PK\x03\x04" + b"\0" * 40,
            b"hello, this is a text",
            b"<html><body>404: Not Found</body></html>",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
            b"\x80\x02}q\x00.",
            b"\x80\x04\x95",
            (255).to_bytes(8, "little") + b"{}",
            (2**63).to_bytes(8, "little") + b"{}",
        ],
    )
    @pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
    def test_what_is_no_file_of_weights_is_refused_in_a_sentence(self, tmp_path, content, name):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(WeightsError) as caught:
            read(path)
        assert str(path) in caught.value.message
        assert "\n" not in caught.value.message
        assert "weights_only" not in caught.value.message

    def test_an_archive_of_other_things_is_refused(self, tmp_path):
        path = tmp_path / "w.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "hello")
        with pytest.raises(WeightsError, match="not a file of weights, or damaged"):
            read(path)

    @pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
    def test_a_file_that_is_cut_off_anywhere_is_refused(self, tmp_path, kind):
        ending = ".safetensors" if kind == "safetensors" else ".pt"
        whole = save(some_tensors(), tmp_path / f"w{ending}", legacy=kind == "legacy").read_bytes()
        path = tmp_path / f"cut{ending}"
        for length in [*range(0, len(whole), 97), len(whole) - 1]:
            path.write_bytes(whole[:length])
            with pytest.raises(WeightsError):
                read(path)

    @pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
    def test_flipped_bits_give_tensors_or_a_sentence(self, tmp_path, kind):
        ending = ".safetensors" if kind == "safetensors" else ".pt"
        whole = save(some_tensors(), tmp_path / f"w{ending}", legacy=kind == "legacy").read_bytes()
        path = tmp_path / f"flipped{ending}"
        chance = random.Random(0)
        num_refused = 0
        for _ in range(300):
            content = bytearray(whole)
            content[chance.randrange(min(len(content), 1200))] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
            try:
                assert all(isinstance(t, torch.Tensor) for t in read(path).values())
            except WeightsError:
                num_refused += 1
        assert num_refused > 30

    def test_a_pickle_of_a_class_names_it_and_says_what_to_do(self, tmp_path):
        path = tmp_path / "w.pt"
        for value, name in [
            ({"model": some_tensors(), "config": Path("x")}, r"pathlib\.\w+"),
            (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
        ]:
            save(value, path)
            with pytest.raises(WeightsError, match=rf"holds {name} beside tensors") as caught:
                read(path)
            assert "take the safetensors" in caught.value.hint

    def test_a_plain_pickle_runs_nothing(self, tmp_path):
        path = tmp_path / "w.pt"
        path.write_bytes(pickle.dumps(Canary(str(tmp_path / "canary")), protocol=2))
        with pytest.raises(WeightsError):
            read(path)
        assert not (tmp_path / "canary").exists()
        pickle.loads(path.read_bytes())
        assert (tmp_path / "canary").exists()


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return os.mkdir, (self.name,)


class TestLoading:
    def test_every_key_is_accounted_for(self):
        tensors = some_tensors() | {
            "head.weight": torch.ones(3),
            "head.bias": torch.ones(3),
            "mask": torch.ones(1),
            "text.deep.down": torch.ones(1),
        }
        module = linear()
        report = load_strictly(
            module,
            tensors,
            source="w.pt",
            ignored=("head", "mask", "text", "text.deep", "none"),
            dropped={"audio": 4, "head": 1},
            note="as it is",
        )
        assert report.loaded == ("weight", "bias")
        assert report.ignored == {"audio": 4, "head": 3, "mask": 1, "text.deep": 1}
        assert report.num_parameters == 16 * 33
        assert report.note == "as it is"
        assert torch.equal(module.weight, tensors["weight"])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"bias": None}, "missing: bias$"),
            ({"heads": torch.ones(1)}, "unknown: heads$"),
            ({"head_2.x": torch.ones(1)}, "unknown: head_2.x$"),
            ({"bias": torch.ones(17)}, r"wrong: bias is \(17,\), expected \(16,\)$"),
            ({"bias": torch.ones(16, 1)}, r"wrong: bias is \(16, 1\), expected \(16,\)$"),
            (
                {"bias": torch.ones(16, dtype=torch.int8)},
                r"wrong: bias is \(16,\) int8, expected \(16,\)$",
            ),
            ({"bias": torch.ones(16).to_sparse()}, r"wrong: bias is"),
        ],
    )
    def test_what_does_not_fit_is_named(self, change, message):
        tensors = {k: v for k, v in (some_tensors() | change).items() if v is not None}
        with pytest.raises(WeightsError, match=f"w.pt: not the weights of this model: {message}"):
            load_strictly(linear(), tensors, source="w.pt", ignored=("head",))

    def test_of_many_wrong_keys_some_are_shown(self):
        more = {f"extra{index}": torch.ones(1) for index in range(9)}
        with pytest.raises(WeightsError, match=r"unknown: extra0, .*, extra4 and 4 more"):
            load_strictly(linear(), some_tensors() | more, source="w")

    def test_a_module_without_need_of_weights_takes_none(self):
        assert match_keys({}, {}, source="w") == {}

    def test_half_precision_becomes_float32_and_integers_stay(self):
        class Counting(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(3))
                self.register_buffer("count", torch.zeros(2, dtype=torch.int64))

        module = Counting()
        counts = torch.tensor([3, 4])
        halves = torch.tensor([1.5, 2, 3], dtype=torch.bfloat16)
        load_strictly(module, {"scale": halves, "count": counts}, source="w")
        assert module.scale.dtype == torch.float32
        assert module.scale.tolist() == [1.5, 2, 3]
        assert module.count.dtype == torch.int64
        assert module.count.tolist() == [3, 4]

    @pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
    def test_what_is_written_over_the_file_later_does_not_reach_the_model(self, tmp_path, name):
        tensors = some_tensors()
        path = save(tensors, tmp_path / name)
        module = linear()
        load_strictly(module, read(path), source="w")
        with path.open("r+b") as file:  # the same file, not another one of its name
            file.write(b"\xff" * path.stat().st_size)
        assert torch.equal(module.weight, tensors["weight"])
        assert torch.equal(module.bias, tensors["bias"])

    def test_weights_begin_where_products_are_always_rounded_alike(self, tmp_path):
        tensors = some_tensors()
        for index, name in enumerate(("a", "abc", "abcdefgh")):  # headers of several lengths
            path = tmp_path / f"{index}.safetensors"
            save_file(tensors, path, metadata={name: name})
            module = linear()
            load_strictly(module, read(path), source="w")
            assert module.weight.data_ptr() % ALIGNMENT == 0
            assert torch.equal(module.weight, tensors["weight"])

    def test_a_view_of_another_order_is_put_in_order(self):
        tensors = some_tensors()
        turned = tensors | {"weight": tensors["weight"].t().contiguous().t()}
        assert not turned["weight"].is_contiguous()
        module = linear()
        load_strictly(module, turned, source="w")
        assert module.weight.is_contiguous()
        assert torch.equal(module.weight, tensors["weight"])


def test_a_prefix_is_kept_where_any_key_has_it():
    tensors = {"visual.a": torch.ones(1), "text.a": torch.zeros(1)}
    assert keep_prefix(tensors, "visual.").keys() == {"a"}
    assert keep_prefix(tensors, "audio.").keys() == tensors.keys()


def test_families_are_counted_by_their_first_name():
    keys = ["temp", "text.a.b", "text.c", "vision_proj.weight"]
    assert json.dumps(count_families(keys)) == '{"temp": 1, "text": 2, "vision_proj": 1}'


def test_float16_by_torch_is_float16_by_numpy() -> None:
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 1_000_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.concatenate(
        [
            values[~np.isnan(values)],
            np.float32([0.0, -0.0, np.inf, 65504, 65520, -65520, 2**-24, 2**-25, 3 * 2**-25]),
            generator.standard_normal(100_000, dtype=np.float32),
        ]
    )
    assert as_float16_by_torch(values).tobytes() == as_float16(values).tobytes()
