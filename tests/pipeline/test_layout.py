from pathlib import Path

from pipeline.layout import CacheLayout


def test_extensions_come_by_number_also_after_those_of_a_stream(tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path)
    layout.probes.mkdir()
    written = []
    for number in (None, None, 55 * 10**16, None, 56 * 10**16, None):
        written.append(layout.extension(layout.probes, number))
        written[-1].touch()
    assert layout.extensions(layout.probes) == written
    assert written[0].name == "000000.parquet"
    assert written[2].name == "0550000000000000000.parquet"
