"""Summary: what a run is about to do, in a few lines, said before its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoders.devices import device_name

if TYPE_CHECKING:
    from trainer.learning.stages import Stage
    from trainer.learning.training import TrainingRun


def summary_lines(run: TrainingRun) -> list[str]:
    """Rows and their items, parts and their parameters, stages and their steps, device, ranks."""
    lines: list[str] = []
    for stage in run.stages:
        for line in stage.data.prepared.lines:
            if line not in lines:
                lines.append(line)
    lines.append(_parts_line(run))
    lines += [_stage_line(run, stage) for stage in run.stages]
    ranks = run.ranks
    device = device_name(ranks.device)
    lines.append(f"on {device}" if ranks.world == 1 else f"on {ranks.world} ranks, {device}")
    if run.done:
        lines.append(f"going on after step {run.done:,} of {run.num_steps:,}")
    return lines


def _parts_line(run: TrainingRun) -> str:
    counts = {
        name: sum(parameter.numel() for parameter in parameters)
        for name, parameters in run.model.parts().items()
    }
    total = sum(parameter.numel() for parameter in run.model.parameters())
    parts = ", ".join(f"{name} {count_text(count)}" for name, count in counts.items())
    return f"parameters: {parts}; {count_text(total)} in all"


def _stage_line(run: TrainingRun, stage: Stage) -> str:
    data = stage.data
    packs = data.packs.epoch(0)
    lengths = data.prepared.planned.lengths
    num_tokens = sum(int(lengths[list(pack.items)].sum()) for pack in packs)
    batch = run.config.batch
    fill = num_tokens / (len(packs) * batch.tokens_per_pack)
    return (
        f"stage {stage.spec.name}: trains {', '.join(stage.spec.train)} on"
        f" {_count(len(data.prepared.items), 'item')} in {_count(len(packs), 'pack')} an epoch,"
        f" {fill:.0%} full; {_count(data.num_steps, 'step')} of {_count(batch.packs, 'pack')},"
        f" about {fill * batch.packs * batch.tokens_per_pack:,.0f} tokens each"
    )


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def count_text(count: int) -> str:
    """Such as 812, 63.7 M or 7.62 G."""
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return str(count)
