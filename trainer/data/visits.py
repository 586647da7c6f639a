"""Visits: which samples are read for which clips, in the order of the tars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.extents import Extents

Numbers = npt.NDArray[np.int64]

NO_VISIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """V looks at a sample, each for one of C clips of F frames."""

    rows: Numbers
    """(V,): of the index."""
    clips: Numbers
    """(V,)"""
    ordinals: Numbers
    """(V,): the how manieth sample of its clip it is."""
    visit_CF: Numbers
    """(C, F): by which a frame is read; NO_VISIT: there is no frame."""
    first_C: Numbers
    """(C,): by which a clip's first frame is."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, rows_CF: Numbers, extents: Extents) -> Visits:
        """For frames by the rows of their samples; -1: there is no frame.

        A clip's frames of one sample stand together, as frames in order of time do.
        """
        there = rows_CF >= 0
        clip_N, row_N = np.nonzero(there)[0], rows_CF[there]
        begins = np.ones(len(row_N), dtype=np.bool_)
        begins[1:] = (row_N[1:] != row_N[:-1]) | (clip_N[1:] != clip_N[:-1])
        clips, rows = clip_N[begins], row_N[begins]
        ordinals = np.arange(len(clips)) - np.searchsorted(clips, clips)
        order = np.lexsort((clips, extents.offsets[rows], extents.shard_codes[rows]))
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        visit_CF = np.full(rows_CF.shape, NO_VISIT, dtype=np.int64)
        visit_CF[there] = number[np.cumsum(begins) - 1]
        first_C = np.full(len(rows_CF), NO_VISIT, dtype=np.int64)
        first_C[clips[ordinals == 0]] = number[ordinals == 0]
        return cls(
            rows=rows[order],
            clips=clips[order],
            ordinals=ordinals[order],
            visit_CF=visit_CF,
            first_C=first_C,
        )
