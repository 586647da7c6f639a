"""`trainer export`."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.show import common_options, print_facts, print_json, set_verbosity, size_text

EPILOG = """\b
Examples:
  trainer export runs/a
  trainer export runs/a -o models/a --step 2000 --merge"""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="The new folder; else RUN/model."
)
@click.option("--step", type=int, help="Of this checkpoint; else the newest.")
@click.option("--merge", is_flag=True, help="Write the language model with its adapters in it.")
@click.option(
    "--copy-lm", is_flag=True, help="Write the language model too where it was not trained."
)
@common_options
def export(
    *,
    run: Path,
    out: Path | None,
    step: int | None,
    merge: bool,
    copy_lm: bool,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Write the model of a RUN as a folder that can be asked, in the style of Hugging Face."""
    set_verbosity(quiet=quiet, loud=loud)
    import dataclasses

    from trainer.learning.exporting import export_run

    exported = export_run(run, out=out, step=step, merge=merge, copy_lm=copy_lm)
    if as_json:
        print_json(dataclasses.asdict(exported))
        return
    print_facts(
        [
            ("model", exported.model),
            ("step", f"{exported.step:,} ({exported.stage})"),
            ("trained", ", ".join(exported.trained)),
            ("language model", exported.language_model),
            ("size", size_text(exported.num_bytes)),
            ("fingerprint", exported.fingerprint),
        ]
    )
