"""The table of cards, its own and a user's."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from schemas.card import read_cards
from schemas.errors import UsageError

SHIPPED = (resources.files("schemas") / "cards.toml").read_text("utf-8")


def test_the_shipped_table_is_of_a_date_and_in_order():
    table = read_cards()
    assert len(table.date) == 7 and table.date > "2026"
    names = [card.name for card in table.cards]
    assert len(set(names)) == len(names) >= 5
    for card in table.cards:
        assert card.usd_low <= card.usd_per_hour <= card.usd_high
    assert table.card(table.default_card).tflops == 989.0


@pytest.mark.parametrize("name", ["A100 SXM", "a100 sxm", "a100", "A1"])
def test_a_card_by_its_name(name):
    assert read_cards().card(name).name == "A100 SXM"


@pytest.mark.parametrize("name", ["L4", "l4"])
def test_a_whole_name_is_not_the_start_of_another(name):
    assert read_cards().card(name).name == "L4"


@pytest.mark.parametrize(("name", "told"), [("H100 SMX", "did you mean 'H100 SXM'"), ("", "known")])
def test_no_such_card(name, told):
    with pytest.raises(UsageError, match=r"no card named") as caught:
        read_cards().card(name)
    assert told in caught.value.message


def test_a_table_of_ones_own(tmp_path):
    path = tmp_path / "cards.toml"
    path.write_text(SHIPPED.replace("usd_per_hour = 3.99", "usd_per_hour = 2"))
    assert read_cards(path).card("h100").usd_per_hour == 2.0


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('date = "2026-11"', "date = 2026", "date = 2026 must be a str"),
        ("usd_per_hour = 3.99", "usd_per_hour = 0", "usd_per_hour = 0.0 must be above 0"),
        ("usd_per_hour = 3.99", "usd_per_hour = inf", "usd_per_hour = inf must be above 0"),
        ("encoding_utilisation = 0.4", "encoding_utilisation = 40", "above 0 and at most 1"),
        ("usd_per_hour = 3.99", "usd_an_hour = 3.99", "did you mean 'usd_per_hour'"),
        ('default_card = "H100 SXM"', 'default_card = "B200"', "no card named 'B200'"),
        ('name = "H200"', 'name = "H100 SXM"', "more than one card is named 'H100 SXM'"),
        ("[decoding]", "[decoding", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(old, new, told, tmp_path):
    path = tmp_path / "cards.toml"
    path.write_text(SHIPPED.replace(old, new, 1))
    with pytest.raises(UsageError, match=r"cards\.toml: ") as caught:
        read_cards(path)
    assert told in caught.value.message
    assert caught.value.exit_code == 2 and caught.value.hint


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_cards(tmp_path / "none.toml")
