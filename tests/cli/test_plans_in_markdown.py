"""`karpool plan -o markdown`: tables that hold whatever names a cluster has, and nothing that is obeyed."""

import re
from pathlib import Path

import pytest
import yaml

from karpool.cli.main import run
from karpool.cli.output.plan_markdown import table, text
from karpool.model.catalogue.files import load_shipped
from tests.cli.example_fleet import example_fleet


def test_a_plan_for_a_pull_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump_all(example_fleet(load_shipped("us-east-1"))))

    assert run(["plan", "--snapshot", str(path), "-o", "markdown"], "karpool") == 0

    shown = capsys.readouterr().out
    assert shown.startswith("## Consolidation plan of fleet.yaml\n")
    assert "nothing was changed" in shown
    assert shown.count("<details>") == shown.count("</details>") > 0
    for block in re.findall(r"(?:^\|.*\|\n)+", shown, flags=re.MULTILINE):
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(bars) == 1, block


@pytest.mark.parametrize(
    "evil", ["<img src=x>", "a|b", "[x](http://e)", "*b*", "`c`", "a\nb", "\x1b[31m", "@team"]
)
def test_names_are_not_obeyed(evil: str) -> None:
    (line,) = table((["A"], [[evil]])).splitlines()[2:]

    assert line.startswith("| ") and line.endswith(" |")
    cell = re.sub(r"\\.", "", line[2:-2].replace("<!-- -->", ""))
    assert not set(cell) & set("<|`*[")
    assert "@team" not in text(evil)
