"""Read Prometheus' text format 0.0.4, strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?\}})? ([-+0-9.eE]+|NaN|[-+]Inf)")
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_SUFFIXES = {"counter": ("",), "gauge": ("",), "summary": ("_sum", "_count")}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric with its samples."""

    kind: str
    meaning: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """Name -> family. AssertionError: not in the format."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    name = meaning = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, meaning = line.removeprefix("# HELP ").split(" ", 1)
            assert re.fullmatch(_NAME, name), line
            assert name not in families, f"{name} comes twice"
        elif line.startswith("# TYPE "):
            typed, kind = line.removeprefix("# TYPE ").split(" ")
            assert typed == name, "HELP and TYPE of two metrics"
            assert kind in _SUFFIXES, line
            families[name] = Family(kind, meaning)
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, f"not a sample: {line!r}"
            assert match[1] in {name + end for end in _SUFFIXES[families[name].kind]}, line
            labels = tuple(
                (label, re.sub(r"\\.", lambda found: _ESCAPES[found[0]], value))
                for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
            )
            assert (match[1], labels) not in families[name].samples, f"twice: {line}"
            families[name].samples[match[1], labels] = float(match[3])
    return families
