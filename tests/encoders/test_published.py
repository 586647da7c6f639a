"""What published files say of themselves, without torch and without their tensors."""

import json
import re
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from encoders.published import check_fields, config_beside, mentions
from encoders.weights import Weights
from schemas.errors import WeightsError

TENSORS = {"tower.patch.weight": torch.zeros(2), "tower.norm": torch.zeros(1)}


def weights_of(*paths) -> Weights:
    return Weights(paths=tuple(paths))


def test_names_of_tensors_are_found_in_every_kind_of_file(tmp_path):
    new, old, safe = (tmp_path / name for name in ("new.pt", "old.pt", "model.safetensors"))
    torch.save({"model": TENSORS}, new)
    torch.save(TENSORS, old, _use_new_zipfile_serialization=False)
    save_file(TENSORS, safe)
    assert zipfile.is_zipfile(new)
    assert not zipfile.is_zipfile(old)
    for path in (new, old, safe):
        assert mentions(weights_of(path), "patch.")
        assert not mentions(weights_of(path), "embeddings.")


def test_one_of_several_parts_is_enough(tmp_path):
    parts = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for part, (name, tensor) in zip(parts, TENSORS.items(), strict=True):
        save_file({name: tensor}, part)
    assert mentions(weights_of(*parts), "patch.")
    assert mentions(weights_of(*parts), "norm")


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    path = tmp_path / "model.pt"
    torch.save({"tower.patch.weight": Bomb()}, path)
    assert mentions(weights_of(path), "tower.patch.")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc",
    ],
)
def test_a_damaged_header_is_no_file_of_weights(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="not a safetensors file"):
        mentions(weights_of(path), "patch.")


def test_a_zip_without_tensors_mentions_nothing(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "tower.patch.")
    assert not mentions(weights_of(path), "tower.patch.")


def test_a_configuration_lies_beside_the_weights_or_is_not_there(tmp_path):
    weights = weights_of(tmp_path / "model.safetensors")
    assert config_beside(weights, "config.json") is None
    assert config_beside(Weights(paths=()), "config.json") is None
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"width": 3}))
    assert config_beside(weights, "config.json") == (path, {"width": 3})


@pytest.mark.parametrize("text", ["{", "[1]", "\x00"])
def test_a_configuration_that_is_no_json_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=r"config\.json: not a configuration"):
        config_beside(weights_of(tmp_path / "model.safetensors"), "config.json")


def test_the_first_field_that_differs_is_named(tmp_path):
    expected = {"width": (3,), "size": (4, 5)}
    check_fields(tmp_path, {"width": 3, "size": 5}, expected, encoder="toy")
    message = "vision.size = 6, and toy has 4 or 5"
    with pytest.raises(WeightsError, match=re.escape(message)):
        check_fields(tmp_path, {"width": 3, "size": 6}, expected, encoder="toy", within="vision")
    with pytest.raises(WeightsError, match="width = None, and toy has 3"):
        check_fields(tmp_path, {}, expected, encoder="toy")
