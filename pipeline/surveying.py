"""Survey: what sources are and what a cache has of them, as a run looks at it; writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from encoders import EncoderSpec, SoundSpec
from pipeline.finalizing import read_committed
from pipeline.layout import CacheLayout
from pipeline.planning import MadeBy, check_recipe, read_made_by, read_plan
from pipeline.pool import num_cores
from pipeline.probe_pool import probe_all
from pipeline.probing import read_probes, select_unprobed
from pipeline.settling import settle_ids
from pipeline.signing import learn
from schemas.plan import ShardSpec
from schemas.recipe import DecodeLimits, Recipe
from schemas.sidecar import Sidecar
from schemas.video import Probe, Source

OnBegin = Callable[[int], Callable[[Probe], None]]
"""Told how many sources are looked at; gives what is told of each one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What there is before a run."""

    sources: tuple[Source, ...]
    """That the run is about."""
    probes: tuple[Probe, ...]
    """The newest of every source that is named or that the cache has seen."""
    planned: tuple[ShardSpec, ...] = ()
    """What the cache was to hold before."""
    sidecars: tuple[Sidecar, ...] = ()
    """Of those that are committed."""

    @property
    def own_probes(self) -> list[Probe]:
        """Of the run's sources, in their order."""
        by_identity = {probe.source.identity: probe for probe in self.probes}
        return [by_identity[source.identity] for source in self.sources]

    def without_cache(self) -> Survey:
        """The same sources, for a cache that is still to be made."""
        own = {source.identity for source in self.sources}
        probes = tuple(probe for probe in self.probes if probe.source.identity in own)
        return Survey(sources=self.sources, probes=probes)


def survey(
    sources: Sequence[Source] | None,
    *,
    layout: CacheLayout | None,
    limits: DecodeLimits,
    on_begin: OnBegin = lambda _: lambda _: None,
) -> Survey:
    """Look at those of the sources that the cache does not know, or that have changed.

    None as sources is all that the cache knows. `layout` None: there is no cache. CacheDamaged.
    Errors of looking as of `probe_all`.
    """
    # At once, since a run may be adding to both while sources are looked at.
    planned = [] if layout is None else read_plan(layout)
    sidecars = [] if layout is None else read_committed(planned, layout)
    known = [] if layout is None else read_probes(layout)
    if sources is None:
        sources = [probe.source for probe in known]
        unprobed = []
    else:
        sources = [replace(source, uri=learn(source.uri)) for source in sources]
        unprobed = select_unprobed(sources, known)
    fresh: list[Probe] = []
    if unprobed:
        found = probe_all(
            unprobed, limits=limits, num_processes=num_cores(), on_probe=on_begin(len(unprobed))
        )
        fresh = settle_ids(found, known=known, existing=planned)
    newest = {probe.source.identity: probe for probe in [*known, *fresh]}
    return Survey(
        sources=tuple(sources),
        probes=tuple(newest[identity] for identity in sorted(newest)),
        planned=tuple(planned),
        sidecars=tuple(sidecars),
    )


def check_same(
    layout: CacheLayout, recipe: Recipe, specs: Mapping[str, EncoderSpec | SoundSpec]
) -> None:
    """FingerprintMismatch: the cache is of another recipe. CacheError as of `check_recipe`.

    What is not known here is taken to be as in the cache: the digest of weights that are not named,
    the GELU that they imply, the precision of another machine's device.
    """
    made_by = read_made_by(layout)
    check_recipe(layout, recipe, known_stamps(recipe, specs, made_by=made_by))


def known_stamps(
    recipe: Recipe,
    specs: Mapping[str, EncoderSpec | SoundSpec],
    *,
    made_by: MadeBy | None = None,
) -> dict[str, dict[str, Any]]:
    """The stamps of the encoders, completed as in `check_same`."""
    stamps = {name: spec.stamp() for name, spec in specs.items()}
    for name, settings in recipe.settings().items():
        old = {} if made_by is None else made_by.stamps.get(name, {})
        if old.get("name") != specs[name].name:
            continue
        unknown = ["precision"] if settings.precision == "auto" else []
        if specs[name].weights_hint and not specs[name].weights_sha256:
            unknown += ["weights_sha256"] if settings.gelu else ["weights_sha256", "activation"]
        stamps[name] |= {field: old[field] for field in unknown if field in old}
    return stamps
