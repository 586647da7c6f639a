"""Spans as numbers: what they can be, and how far from the truth they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.model.time_head import TimeHead, generalised_iou, iou, time_loss

places = st.floats(0, 1, width=32)
spans = st.tuples(places, places).map(sorted).filter(lambda span: span[1] - span[0] > 1e-3)


def measure(function, one, other) -> float:
    return function(torch.tensor([one]), torch.tensor([other])).item()


@given(spans, spans)
def test_iou_is_that_of_a_fine_grid(one, other):
    grid = torch.linspace(0, 1, 20_001)
    inside = [(grid >= start) & (grid < end) for start, end in (one, other)]
    overlap = (inside[0] & inside[1]).sum() / (inside[0] | inside[1]).sum()
    # A span of 0.001 has twenty points, and each of its ends may miss one.
    assert measure(iou, one, other) == pytest.approx(overlap.item(), abs=0.11)
    if min(one[1] - one[0], other[1] - other[0]) > 0.1:
        assert measure(iou, one, other) == pytest.approx(overlap.item(), abs=2e-3)


@given(spans, spans)
def test_iou_is_symmetric_and_bounded(one, other):
    both = measure(iou, one, other)
    assert 0 <= both <= 1
    assert both == measure(iou, other, one)
    generalised = measure(generalised_iou, one, other)
    assert -1 <= generalised <= both + 1e-6
    meets = one[0] <= other[1] and other[0] <= one[1]
    assert not meets or generalised == pytest.approx(both, abs=1e-4)
    assert meets or (both == 0 and generalised < 0)


@given(spans, st.floats(0.1, 1), st.floats(0, 0.5))
def test_iou_does_not_depend_on_unit_and_origin(one, scale, shift):
    other = (0.25, 0.75)
    moved = [[point * scale + shift for point in span] for span in (one, other)]
    assert measure(iou, *moved) == pytest.approx(measure(iou, one, other), abs=1e-2)


@given(spans)
def test_the_truth_costs_nothing_and_all_else_something(span):
    assert measure(iou, span, span) == pytest.approx(1, abs=1e-6)
    assert measure(time_loss, span, span) == pytest.approx(0, abs=1e-6)
    assert measure(time_loss, span, (0.5, 0.5005)) > 0 or span == [0.5, 0.5005]


@given(spans, spans)
def test_the_loss_is_the_sum_of_its_parts(one, other):
    l1 = abs(one[0] - other[0]) + abs(one[1] - other[1])
    wanted = l1 + 1 - measure(generalised_iou, one, other)
    assert measure(time_loss, one, other) == pytest.approx(wanted, abs=1e-5)
    assert 0 <= wanted <= 4


def test_points_are_no_division_by_zero():
    predicted = torch.tensor([[0.5, 0.5], [0.2, 0.2]], requires_grad=True)
    loss = time_loss(predicted, torch.tensor([[0.5, 0.5], [0.7, 0.7]]))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert predicted.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_gives_spans_and_gradients(dtype):
    torch.manual_seed(0)
    head = TimeHead(8).to(dtype)
    out = head(100 * torch.randn(64, 8, dtype=dtype))
    assert out.dtype == torch.float32
    assert ((out[:, 0] >= 0) & (out[:, 0] <= out[:, 1]) & (out[:, 1] <= 1)).all()
    time_loss(out, torch.tensor([0.2, 0.4]).expand(64, 2)).mean().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name
    assert head(torch.zeros(0, 8, dtype=dtype)).shape == (0, 2)


def test_it_learns_where_a_span_is_even_from_one_that_does_not_meet_it():
    torch.manual_seed(0)
    head = TimeHead(8)
    hidden = torch.randn(16, 8)
    target = torch.rand(16, 2).sort(dim=-1).values * torch.tensor([0.9, 1.0])
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(300):
        loss = time_loss(head(hidden), target).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert iou(head(hidden), target).mean() > 0.8
