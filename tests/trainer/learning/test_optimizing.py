"""Rates: a warm-up, then a cosine; only what a stage trains is moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainer.config import OptimSpec, StageSpec
from trainer.learning.optimizing import make_optimizer, names_of, rate_factor, set_rates


@given(st.integers(1, 300), st.sampled_from([0.0, 0.03, 0.5, 7.0]), st.floats(0, 1))
def test_rates_rise_then_fall(num_steps, warmup, final):
    optim = OptimSpec(warmup=warmup, final=final)
    factors = [rate_factor(step, num_steps=num_steps, optim=optim) for step in range(num_steps)]
    peak = factors.index(max(factors))
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert all(0 < factor <= 1 for factor in factors)
    if warmup < num_steps:
        assert min(factors[peak:]) >= final - 1e-12


def test_rates_of_a_plain_cosine():
    optim = OptimSpec(warmup=0, final=0.1)
    factors = [rate_factor(step, num_steps=4, optim=optim) for step in range(5)]
    assert factors == pytest.approx([1.0, 0.868198, 0.55, 0.231802, 0.1], abs=1e-6)
    constant = OptimSpec(warmup=2, schedule="constant")
    factors = [rate_factor(step, num_steps=9, optim=constant) for step in range(5)]
    assert factors == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 1.0])


def test_a_stage_moves_its_parts_only():
    model = nn.ModuleDict({"connector": nn.Linear(2, 2), "lm": nn.Linear(2, 2)})
    parts = {name: list(module.parameters()) for name, module in model.items()}
    stage = StageSpec(name="a", train=("connector",), lr={"connector": 0.5}, steps=1)
    optimizer = make_optimizer(parts, stage=stage, optim=OptimSpec(betas=(0.8, 0.9)))
    assert names_of(model, optimizer) == {"connector.weight", "connector.bias"}
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]
    set_rates(optimizer, factor=0.5)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    both = StageSpec(name="b", train=("connector", "lm"), lr={"connector": 1, "lm": 2}, steps=1)
    optimizer = make_optimizer(parts, stage=both, optim=OptimSpec())
    assert all(p.requires_grad for p in model.parameters())
    assert [group["lr"] for group in optimizer.param_groups] == [1, 2]
