"""Make a forecast of a run from a survey and a recipe, with no weights and no pixels.

clips        as a run plans them, see `planning`
GPU seconds  operations / (peak x utilisation); or frames / the user's own frames a second
cost         GPU-hours x price; storage: bytes x price of a month
cores        decoding of one core / GPU seconds: so many keep the card busy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from encoders import EncoderSpec, SoundSpec
from encoders.weights import HUB
from pipeline.encoding import all_specs
from pipeline.finalizing import account_so_far
from pipeline.forecast import CardForecast, Forecast, SourceForecast
from pipeline.layout import CacheLayout
from pipeline.oddities import find_oddities
from pipeline.planning import estimate_clip_bytes, estimate_member_bytes, extend_plan, feature_bytes
from pipeline.recovering import pieces_back
from pipeline.source_files import is_remote
from pipeline.surveying import OnBegin, Survey, check_same, known_stamps, survey
from pipeline.workload import Workload, sum_up
from schemas.card import CardTable
from schemas.errors import FingerprintMismatch, UsageError
from schemas.plan import ShardSpec
from schemas.recipe import Recipe
from schemas.settings import nearest
from schemas.video import Source

ALL = ""
"""Of speeds: of all streams together."""


def forecast_recipes(
    sources: Sequence[Source] | None,
    recipes: Sequence[Recipe],
    *,
    layout: CacheLayout | None,
    table: CardTable,
    card: str = "",
    speeds: Mapping[str, float] | None = None,
    on_begin: OnBegin = lambda _: lambda _: None,
) -> list[Forecast]:
    """What a run on these sources would do, of each recipe; nothing is written or downloaded.

    Sources are looked at once, within the first recipe's limits; None is all that the cache knows.
    `on_begin` as of `survey`, all else as of `forecast`. Errors as of both, RecipeError,
    WeightsError. UsageError: `speeds` of a stream that no recipe has. FingerprintMismatch: the
    cache is of another recipe than the only one; of several, those that it is not of are told as
    for a new cache.
    """
    specs = [all_specs(_without_downloads(recipe)) for recipe in recipes]
    known = {name for one in specs for name in one}
    for name in speeds or ():
        if name != ALL and name not in known:
            raise UsageError(f"--frames-per-second {name}=: no such stream{nearest(name, known)}")
    is_known = [False for _ in recipes]
    for number, recipe in enumerate(recipes if layout is not None else ()):
        assert layout is not None
        try:
            check_same(layout, recipe, specs[number])
            is_known[number] = True
        except FingerprintMismatch:
            if len(recipes) == 1:
                raise
    found = survey(sources, layout=layout, limits=recipes[0].limits, on_begin=on_begin)
    return [
        forecast(
            found if is_known[number] else found.without_cache(),
            recipe,
            specs=specs[number],
            table=table,
            card=card,
            speeds=speeds,
        )
        for number, recipe in enumerate(recipes)
    ]


def _without_downloads(recipe: Recipe) -> Recipe:
    # Weights that are not on this machine count as not named.
    return recipe.with_settings(
        {
            name: replace(one, weights="") if one.weights == HUB or is_remote(one.weights) else one
            for name, one in recipe.settings().items()
        }
    )


def forecast(
    found: Survey,
    recipe: Recipe,
    *,
    specs: Mapping[str, EncoderSpec | SoundSpec],
    table: CardTable,
    card: str = "",
    speeds: Mapping[str, float] | None = None,
) -> Forecast:
    """What a run on these sources would do.

    `specs` are the recipe's, as of `encoding.all_specs`. `card` is the name of one in `table`;
    empty: its default one. `speeds` is stream, or `ALL` -> sampled frames a second that this card
    was measured to encode, others are then scaled by their peaks; streams that the recipe has not
    are passed over. UsageError: no such card.
    """
    chosen = table.card(card or table.default_card)
    speeds = {name: speed for name, speed in (speeds or {}).items() if name in {ALL, *specs}}
    stamps = known_stamps(recipe, specs)
    todo = specs_to_do(found, recipe, clip_bytes=estimate_clip_bytes(recipe, stamps))
    pictures = {name: spec for name, spec in specs.items() if isinstance(spec, EncoderSpec)}
    sound = next((spec for spec in specs.values() if isinstance(spec, SoundSpec)), None)
    member_bytes = estimate_member_bytes(recipe, stamps)
    work = sum_up(
        todo,
        probes=found.probes,
        sampling=recipe.sampling,
        clip_bytes=sum(member_bytes.values()),
        encoders=[*pictures.values()],
        sound=sound,
        rates=table.decoding,
    )
    operations = stream_operations(specs, work, num_frames=recipe.sampling.frames_per_clip)
    peak = chosen.tflops * 1e12 * table.encoding_utilisation
    seconds = _gpu_seconds(operations, speeds=speeds, frames=work.frames, peak=peak)
    cards = tuple(
        CardForecast(
            name=one.name,
            gpu_hours=(hours := seconds * chosen.tflops / one.tflops / 3600),
            usd=hours * one.usd_per_hour,
            usd_low=hours * one.usd_low,
            usd_high=hours * one.usd_high,
            cores=work.decode_seconds / 3600 / hours if hours else None,
        )
        for one in table.cards
    )
    video_ids = {probe.video_id for probe in found.own_probes if probe.reject is None}
    done = [s for one in found.sidecars for s in one.samples if s.video_id in video_ids]
    clip_feature_bytes = sum(sum(sizes) for sizes in feature_bytes(recipe, stamps).values())
    measured = set(specs) if ALL in speeds else set(speeds)
    return Forecast(
        recipe=recipe.name,
        description=recipe.description,
        fps=recipe.sampling.fps,
        frames_per_clip=recipe.sampling.frames_per_clip,
        is_new=not found.planned,
        sources=account_of(found, todo),
        work=work,
        done_clips=len(done),
        done_bytes=sum(entry.num_bytes for entry in done),
        bytes_per_clip=sum(member_bytes.values()),
        member_bytes=member_bytes,
        trained_bytes=(len(done) + work.clips) * clip_feature_bytes,
        card=chosen.name,
        cards=cards,
        operations=sum(value or 0.0 for value in operations.values()),
        speed="measured" if measured else "operations",
        unknown_streams=tuple(
            name for name, value in operations.items() if value is None and name not in measured
        ),
        utilisation=table.encoding_utilisation,
        usd_per_gb_month=table.usd_per_gb_month,
        figures_date=table.date,
        oddities=tuple(find_oddities(found.own_probes, recipe=recipe)),
    )


def specs_to_do(found: Survey, recipe: Recipe, *, clip_bytes: int) -> list[ShardSpec]:
    """What a run would build: planned before and not committed, and what it would plan."""
    own = {source.identity for source in found.sources}
    video_ids = {p.video_id for p in found.probes if p.source.identity in own}
    planned = list(found.planned)
    added = extend_plan(
        found.probes,
        recipe=recipe,
        recipe_fingerprint="",  # only names of shards depend on it, and none is written
        clip_bytes=clip_bytes,
        existing=planned,
        again=pieces_back(planned, found.sidecars, found.probes, video_ids=video_ids),
    )
    committed = {sidecar.name for sidecar in found.sidecars}
    return [spec for spec in [*planned, *added] if spec.name not in committed]


def account_of(found: Survey, todo: Sequence[ShardSpec]) -> SourceForecast:
    """What becomes of each source that was named."""
    pending = {piece.video_id for spec in todo for piece in spec.pieces}
    outcomes = account_so_far(found.probes, found.sidecars, todo).outcomes
    seen: set[str] = set()
    rejects = []
    counts = {"to_do": 0, "cached": 0, "copies": 0}
    for probe in found.own_probes:
        outcome = outcomes.get(probe.source.identity)
        if outcome is not None:
            rejects.append(outcome)
        elif probe.video_id in seen:
            counts["copies"] += 1
        else:
            counts["to_do" if probe.video_id in pending else "cached"] += 1
            seen.add(probe.video_id)
    return SourceForecast(
        named=len(found.sources), rejected=len(rejects), rejects=tuple(rejects), **counts
    )


def stream_operations(
    specs: Mapping[str, EncoderSpec | SoundSpec], work: Workload, *, num_frames: int
) -> dict[str, float | None]:
    """Stream -> floating-point operations on a GPU for all clips, fill included; None: not known.

    A chunk of sound is encoded as a whole, however little of it is heard.
    """
    told: dict[str, float | None] = {}
    for name, spec in specs.items():
        if spec.operations is None:
            told[name] = None
        elif isinstance(spec, SoundSpec):
            told[name] = work.chunks * spec.operations.fixed
        else:
            told[name] = work.clips * spec.operations.of_clip(num_frames)
    return told


def _gpu_seconds(
    operations: Mapping[str, float | None],
    *,
    speeds: Mapping[str, float],
    frames: int,
    peak: float,
) -> float:
    # Streams are encoded one after the other.
    if ALL in speeds:
        return frames / speeds[ALL]
    return sum(
        frames / speeds[name] if name in speeds else (value or 0.0) / peak
        for name, value in operations.items()
    )
