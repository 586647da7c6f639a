"""`trainer generate`."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.show import common_options, print_json, set_verbosity, weights_option
from schemas.errors import ReelcacheError, UsageError

if TYPE_CHECKING:
    from trainer.asking.answering import Answer
    from trainer.asking.viewing import Watched
    from trainer.model.model_folder import AskableModel

Span = tuple[float, float]

EPILOG = """\b
Examples:
  trainer generate model/ talk.mp4 "What happens?" --span 3.0-8.0
  trainer generate model/ --features cache/ v0123456789abcdef "What happens?"
  trainer generate model/ talk.mp4 --chat
  trainer generate model/ --text "What is a video?"

With --features, VIDEO is an id, an alias or a key of the cache, and nothing is decoded. --chat goes
on with questions from the terminal or from stdin, a line each, until it ends."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("video", required=False)
@click.argument("question", required=False)
@click.option("--span", metavar="START-END", help="The part of the video that is looked at.")
@click.option("--features", metavar="CACHE", help="Read VIDEO from this cache.")
@click.option("--text", metavar="QUESTION", help="A question about no video.")
@click.option("--chat", is_flag=True, help="Go on with more questions about the same.")
@click.option("--stream", is_flag=True, help="Write the answer while it is made.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Events of VIDEO for a model that was trained with imported ones: srt, vtt, csv, ...",
)
@click.option(
    "--transcripts",
    metavar="FOLDER",
    help="The Whisper model, for a model that was trained with its transcripts.",
)
@weights_option
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--lm", metavar="WHERE", help="The language model, where it has moved.")
@common_options
def generate(
    *,
    model: Path,
    video: str | None,
    question: str | None,
    span: str | None,
    features: str | None,
    text: str | None,
    chat: bool,
    stream: bool,
    max_new_tokens: int,
    events: tuple[Path, ...],
    transcripts: str | None,
    weights: tuple[str, ...],
    device: str,
    lm: str | None,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Answer QUESTION about VIDEO with the MODEL of an export."""
    set_verbosity(quiet=quiet, loud=loud)
    if text is not None:
        if video is not None or features or span:
            raise UsageError("--text is a question about no video", hint="leave VIDEO out")
        question = text
    elif video is None:
        raise UsageError("which VIDEO?", hint="name one, or ask about none with --text QUESTION")
    if question is None and not chat:
        raise UsageError("what is the QUESTION?", hint="put it in quotes, or begin a --chat")
    if stream and as_json:
        raise UsageError("--stream is for text, not for --json")
    if question is not None and not _is_text(question):
        raise UsageError("the QUESTION holds bytes that are no text", hint="write it in UTF-8")
    wanted = None if span is None else read_span(span)
    from encoders.devices import choose_device
    from trainer.asking.conversation import Conversation
    from trainer.model.model_folder import open_model

    device = choose_device(device)
    began = time.perf_counter()
    opened = open_model(model, device=device, lm=lm)
    seconds = {"load": time.perf_counter() - began}
    with _watched(
        opened,
        video,
        features=features,
        span=wanted,
        events=events,
        transcripts=transcripts,
        weights=weights,
        device=device,
        seconds=seconds,
    ) as watched:
        conversation = Conversation(opened, watched=watched)
        for one in _questions(question, chat=chat):
            writing = Writing()
            say = writing.go_on if stream else None
            try:
                answer = conversation.ask(one, max_new_tokens=max_new_tokens, say=say)
            except ReelcacheError as error:
                if not chat:
                    raise
                click.echo(f"{error.message}", err=True)
                continue
            told = _to_json(answer, opened, seconds=seconds)
            if as_json and chat:
                click.echo(json.dumps(told, ensure_ascii=False))
            elif as_json:
                print_json(told)
            else:
                writing.end(answer.text)


class Writing:
    """Writes an answer that grows to stdout."""

    def __init__(self) -> None:
        self._written = ""

    def go_on(self, text: str) -> None:
        """The answer so far; a letter of which some bytes are not there yet waits."""
        whole = text.rstrip("\ufffd")
        if whole.startswith(self._written):
            click.echo(whole[len(self._written) :], nl=False)
            sys.stdout.flush()
            self._written = whole

    def end(self, text: str) -> None:
        """The whole answer."""
        click.echo(text.removeprefix(self._written))


def _is_text(argument: str) -> bool:
    # What is not UTF-8 on the command line comes as halves of surrogate pairs.
    return not any("\ud800" <= letter <= "\udfff" for letter in argument)


def read_span(text: str) -> Span:
    """START-END in seconds, such as 3.0-8.0. UsageError: it is none."""
    first, _, second = text.rpartition("-")
    try:
        start, end = float(first), float(second)
    except ValueError:
        start = end = 0.0
    if not start < end < float("inf"):
        raise UsageError(f"--span {text!r} must be START-END in seconds, such as 3.0-8.0")
    return start, end


@contextlib.contextmanager
def _watched(
    model: AskableModel,
    video: str | None,
    *,
    features: str | None,
    span: Span | None,
    events: tuple[Path, ...],
    transcripts: str | None,
    weights: tuple[str, ...],
    device: str,
    seconds: dict[str, float],
) -> Iterator[Watched | None]:
    if video is None:
        yield None
        return
    from trainer.asking.viewing import Viewer

    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        if features is not None:
            from pipeline.cache import open_cache

            if weights:
                raise UsageError("--weights is for encoding a video, not for --features")
            if events or transcripts is not None:
                raise UsageError(
                    "--events and --transcripts are for a video file, not for --features",
                    hint="a cache has events of its own: pipeline events CACHE",
                )
            cache = stack.enter_context(open_cache(features))
            watched = Viewer(model, cache).watch(video, span=span)
            seconds["open"] = time.perf_counter() - began
        else:
            from trainer.asking.watching import encode_for, event_detectors, find_events_for

            detectors = event_detectors(
                model.preprocessing, files=events, transcripts=transcripts, device=device
            )
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="reelcache-"))
            cache = stack.enter_context(
                encode_for(
                    model.preprocessing,
                    video,
                    folder=Path(folder) / "cache",
                    span=span,
                    weights=weights,
                    device=device,
                )
            )
            find_events_for(model.preprocessing, cache, detectors=detectors, files=events)
            (video_id,) = cache.videos
            watched = Viewer(model, cache).watch(video_id, span=span)
            seconds["encode"] = time.perf_counter() - began
        yield watched


def _questions(first: str | None, *, chat: bool) -> Iterator[str]:
    if first is not None:
        yield first
    while chat and sys.stdin is not None:  # it is None where it was closed
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if not _is_text(line):
            click.echo("this line holds bytes that are no text", err=True)
        elif line.strip():
            yield line.strip()


def _to_json(answer: Answer, model: AskableModel, *, seconds: dict[str, float]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "answer": answer.text,
        "video": answer.video,
        "clips": [{"start_seconds": start, "end_seconds": end} for start, end in answer.clips],
        "num_tokens": answer.num_tokens,
        "num_new_tokens": answer.num_new_tokens,
        "is_complete": answer.is_complete,
        "fingerprint": model.preprocessing.fingerprint(),
        "seconds": {
            name: round(value, 4) for name, value in {**seconds, "answer": answer.seconds}.items()
        },
    }
    if answer.span is not None:
        told["span"] = {"start_seconds": answer.span[0], "end_seconds": answer.span[1]}
    return told
