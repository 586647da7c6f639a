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
        """For frames by the rows of their samples; -1: there is no frame."""
        there = rows_CF >= 0
        clip_N, row_N = np.nonzero(there)[0], rows_CF[there]
        _, first, visit_N = np.unique(
            clip_N * len(extents.offsets) + row_N, return_index=True, return_inverse=True
        )
        clips, rows = clip_N[first], row_N[first]
        ordinals = np.empty_like(clips)
        in_time = np.argsort(first)  # clip by clip, and in each as its frames are
        ordinals[in_time] = np.arange(len(clips)) - np.searchsorted(clips[in_time], clips[in_time])
        order = np.lexsort((clips, extents.offsets[rows], extents.shard_codes[rows]))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        rows, clips, ordinals = rows[order], clips[order], ordinals[order]
        visit_CF = np.full(rows_CF.shape, NO_VISIT, dtype=np.int64)
        visit_CF[there] = rank[visit_N]
        first_C = np.full(len(rows_CF), NO_VISIT, dtype=np.int64)
        (firsts,) = np.nonzero(ordinals == 0)
        first_C[clips[firsts]] = firsts
        return cls(rows=rows, clips=clips, ordinals=ordinals, visit_CF=visit_CF, first_C=first_C)
