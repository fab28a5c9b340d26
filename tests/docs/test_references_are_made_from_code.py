"""The pages about commands and metrics say what the code says."""

import pytest
import yaml
from tools import build_reference

from karpool.manager.options import option_fields


@pytest.mark.parametrize("page", build_reference.PAGES)
def test_a_page_is_what_the_code_makes_of_it_today(page: str) -> None:
    shown = (build_reference.DOCS / page).read_text()

    assert shown == build_reference.PAGES[page](), f"{page} is out of date: python tools/build_reference.py"


def test_the_chart_has_the_defaults_of_the_options_or_leaves_them_out() -> None:
    chart = yaml.safe_load((build_reference.DOCS / "../deploy/helm/karpool/values.yaml").read_text())
    for options in build_reference.OPTIONS:
        for field in option_fields(options):
            key = field.about.get("chart")
            # Whoever installs a chart to try it out must not lose nodes; and it is made for Karpenter.
            if key and key not in ("dryRun", "nodeCapacityProviders"):
                assert not chart[options.chart][key] or chart[options.chart][key] == field.shown_default, key


def test_every_command_and_every_process_has_its_part() -> None:
    commands, metrics = (build_reference.PAGES[page]() for page in ("cli.md", "metrics.md"))

    for name in build_reference.commands.list_commands(
        build_reference.click.Context(build_reference.commands)
    ):
        assert f"## karpool {name}\n" in commands
    for process in build_reference.PROCESSES:
        assert f"## {process}\n" in commands and f"## {process}\n" in metrics


def test_metrics_are_named_as_prometheus_wants_them() -> None:
    for make in build_reference.PROCESSES.values():
        for name, kind, labels, text in build_reference._described(make):
            assert name.replace("_", "").isalnum() and name == name.lower(), name
            assert name.endswith("_total") or kind != "counter", name
            assert text, name
            assert not {"pod", "error", "message", "uid"} & set(labels), name
