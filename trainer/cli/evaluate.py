"""`trainer evaluate`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pipeline.cli.show import common_options, print_facts, print_json, print_table, set_verbosity
from trainer.cli.progress import LINE_SECONDS

if TYPE_CHECKING:
    from trainer.asking.evaluating import Evaluation

EPILOG = """\b
Examples:
  trainer evaluate model/ cache/ test.jsonl
  trainer evaluate model/ cache/ test.jsonl --input text -o blind.jsonl"""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("cache")
@click.argument("data")
@click.option("--format", "data_format", default="auto", show_default=True)
@click.option(
    "--input",
    "kind",
    type=click.Choice(["video", "center", "text"]),
    default="video",
    show_default=True,
    help="What is shown: center, the middle frame; text, nothing.",
)
@click.option("--limit", type=click.IntRange(1), help="Ask so many only, the first.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="A file for a row a question, JSONL."
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--lm", metavar="WHERE", help="The language model, where it has moved.")
@common_options
def evaluate(
    *,
    model: Path,
    cache: str,
    data: str,
    data_format: str,
    kind: Literal["video", "center", "text"],
    limit: int | None,
    max_new_tokens: int,
    out: Path | None,
    device: str,
    lm: str | None,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Ask a MODEL the questions of DATA about the videos of a CACHE, and score its answers."""
    set_verbosity(quiet=quiet, loud=loud)
    from encoders.devices import choose_device
    from pipeline.cache import open_cache
    from trainer.asking.evaluating import evaluate as ask_all
    from trainer.data.formats import read_annotations
    from trainer.model.model_folder import open_model

    annotations = read_annotations(data, format=data_format)
    if out is not None:
        _touch(out)  # before all is asked, not after
    with open_cache(cache) as opened:
        result = ask_all(
            open_model(model, device=choose_device(device), lm=lm),
            opened,
            annotations,
            kind=kind,
            limit=limit,
            name=Path(data).stem,
            max_new_tokens=max_new_tokens,
            progress=_Asked(quiet=quiet),
        )
    if out is not None:
        _write(out, result.rows)
    if as_json:
        print_json(result.to_mapping())
    else:
        _show(result)


class _Asked:
    """A line every ten seconds on how many items were asked."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._count, self._said = quiet, 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if not self._quiet and now - self._said >= LINE_SECONDS:
            self._said = now
            click.echo(f"{self._count:,} items asked", err=True)


def _touch(out: Path) -> None:
    from pipeline.storage import storage_errors

    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.open("a").close()


def _write(out: Path, rows: list[dict[str, Any]]) -> None:
    from pipeline.storage import storage_errors

    with storage_errors(out):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        out.write_text(text, encoding="utf-8")


def _show(result: Evaluation) -> None:
    from trainer.asking.scoring import GroundingScore

    header = ["type", "kind", "asked", "right", "95 %", "R@.3", "R@.5", "R@.7", "mIoU", "unread"]
    table: list[list[Any]] = []
    for name, kinds in result.scores.items():
        for kind, score in kinds.items():
            row: list[Any] = [name, kind, score.num_asked]
            if isinstance(score, GroundingScore):
                shares = [*score.recall.values(), score.mean_iou, score.unparsable]
                row += ["", "", *(f"{one:.3f}" for one in shares)]
            else:
                row += [f"{score.accuracy:.3f}", f"{score.low:.3f}-{score.high:.3f}", *[""] * 5]
            table.append(row)
    print_table(header, table)
    click.echo()
    for label, report in result.report.items():
        skipped = {
            outcome: count
            for outcome, count in report.items()
            if isinstance(count, int) and count and outcome not in ("rows", "matched", "text_only")
        }
        if skipped:
            words = ", ".join(f"{count} {outcome}" for outcome, count in skipped.items())
            click.echo(f"{label}: not asked of {report['rows']} rows: {words}")
    print_facts([(key, str(value)) for key, value in result.settings.items()])
