"""What a decoder process does for each kind of request. Runs inside the decoder process only."""

from __future__ import annotations

import errno
import functools
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pipeline import messages
from pipeline.jailed.complaints import Complaints, check_refused_sizes
from pipeline.jailed.frames import Tally
from pipeline.jailed.hearing import hear_windows
from pipeline.jailed.owner import Cancelled, Owner
from pipeline.jailed.packets import read_packet_facts
from pipeline.jailed.pixels import Converter, Pictures
from pipeline.jailed.sampler import VideoSampler
from pipeline.jailed.scheduling import NotSelectable
from pipeline.sampling import SampledFrame, TimesGoBack, Window
from pipeline.slots import PREVIEW, SlotLayout, write_slot
from schemas.errors import VideoError
from schemas.resize import PictureSpec
from schemas.settings import read_settings


def serve(owner: Owner, request: dict[str, Any]) -> None:
    """Answer one request. messages.PipeClosed: the owner is gone."""
    kinds: dict[str, Callable[..., None]] = {
        "probe": _probe,
        "decode": _decode,
        "sound": _sound,
    }
    work = kinds[request.pop("kind")]
    complaints = Complaints(request["path"])
    try:
        work(owner, complaints, **request)
    except messages.PipeClosed:
        raise
    except Cancelled:
        owner.answer("cancelled")
    except VideoError as error:
        owner.answer("reject", reason=error.reason, detail=complaints.explain(error))
    except MemoryError:
        owner.answer("reject", reason="out_of_memory", detail="limits.memory_bytes")
    except OSError as error:
        if error.errno == errno.ENOMEM:
            owner.answer("reject", reason="out_of_memory", detail="limits.memory_bytes")
        else:
            owner.answer("bug", traceback=traceback.format_exc())
    except NotSelectable as error:  # of a decode request
        tried = request.get("order")
        order = "all" if tried == "selected" else "selected"
        owner.answer("start_again", order=order, why=str(error))
    except TimesGoBack:
        owner.answer("start_again", order="sorted", why="times go back")
    except Exception:  # reported as a bug by the owner, never as a reject
        owner.answer("bug", traceback=traceback.format_exc())


def _probe(
    owner: Owner, _: Complaints, *, path: str, max_pixels: int, max_duration_seconds: float
) -> None:
    facts = read_packet_facts(
        path,
        max_pixels=max_pixels,
        max_duration_seconds=max_duration_seconds,
        alive=owner.alive,
    )
    owner.answer("facts", facts=facts)


def _decode(
    owner: Owner,
    complaints: Complaints,
    *,
    path: str,
    max_pixels: int,
    max_duration_seconds: float,
    window: dict[str, Any],
    pictures: dict[str, dict[str, Any]],
    preview_height: int | None,
    picture_bytes: dict[str, int],
    order: str,
    part: int,
    num_parts: int,
) -> None:
    layout = SlotLayout.of(picture_bytes)
    owner.free_slots = list(range(layout.num_slots))
    specs = tuple((name, read_settings(PictureSpec, one)) for name, one in pictures.items())
    converter = _converter(specs, preview_height)
    sampler = VideoSampler(
        path,
        window=Window(**window),
        convert=lambda frame, aspect: converter.convert(frame, sample_aspect=aspect),
        max_pixels=max_pixels,
        max_duration_seconds=max_duration_seconds,
        alive=owner.alive,
    )
    if order == "selected":
        samples = sampler.selected(
            part=part,
            num_parts=num_parts,
            announce=lambda stops: owner.answer("schedule", stops=stops),
        )
    elif order in ("all", "sorted"):
        samples = sampler.sorted() if order == "sorted" else sampler.all()
    else:
        samples = sampler.by_backend(order)
    tally = sampler.tally
    previous: Pictures | None = None
    while True:
        try:
            sample = next(samples)
        except StopIteration as stop:
            if tally.num_frames == 0:
                check_refused_sizes(max_pixels=max_pixels)
            owner.answer(
                "done",
                end_seconds=stop.value,
                num_frames_decoded=tally.num_frames,
                num_decode_errors=tally.num_errors,
                num_problems=tally.num_problems,
                complaint=complaints.last(),
            )
            return
        fields = {"slot": None} if sample.picture is previous else _put(owner, layout, sample)
        owner.answer(
            "sample",
            k=sample.k,
            grid_seconds=sample.grid_seconds,
            start_seconds=sample.start_seconds,
            end_seconds=sample.end_seconds,
            num_problems=tally.num_problems,
            **fields,
        )
        previous = sample.picture


@functools.lru_cache(maxsize=1)
def _converter(specs: tuple[tuple[str, PictureSpec], ...], preview_height: int | None) -> Converter:
    # Kept from video to video: the scalers' tables fit the next one of the same format.
    return Converter(pictures=dict(specs), preview_height=preview_height)


def _sound(
    owner: Owner,
    _: Complaints,
    *,
    path: str,
    origin_seconds: float,
    num_windows: int,
    first_window: int,
    rate: int,
    in_order: bool,
    max_pixels: int,
) -> None:
    windows = hear_windows(
        path,
        origin_seconds=origin_seconds,
        num_windows=num_windows,
        first_window=first_window,
        rate=rate,
        in_order=in_order,
        max_pixels=max_pixels,
        tally=Tally(),
        alive=owner.alive,
    )
    for window in windows:
        owner.alive()  # silence past the end needs no packets
        owner.answer("sound", [window.samples.data], index=window.index, heard=window.heard)
    owner.answer("done")


def _put(owner: Owner, layout: SlotLayout, sample: SampledFrame[Pictures]) -> dict[str, Any]:
    # The picture goes through the shared memory, the rest into the message.
    pictures = dict(sample.picture.frames)
    if sample.picture.preview is not None:
        pictures[PREVIEW] = sample.picture.preview
    slot = owner.take_slot()
    shapes = write_slot(owner.memory, layout, slot, pictures)
    return {"slot": slot, "pictures": shapes, "shape": asdict(sample.picture.shape)}
