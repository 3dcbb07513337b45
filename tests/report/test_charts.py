"""The charts' specifications."""

from __future__ import annotations

import json
import re

from kcoord_wire.report.page.charts import chart_specs


def test_charts_contain_no_data_and_no_address() -> None:
    specs = chart_specs()
    assert list(specs) == ["causes", "lanes", "lag", "pauses", "commits"]
    for spec in specs.values():
        assert "datasets" not in spec
        assert "values" not in json.dumps([layer["data"] for layer in spec["layer"]])
        addresses = re.findall(r'https?://[^"]*', json.dumps(spec))
        assert addresses == [spec["$schema"]]
