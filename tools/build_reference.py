"""Writes docs/cli.md, docs/metrics.md, and options, schema and README of the chart:
python tools/build_reference.py

Commands and flags are read from the command line itself, metrics from what each process registers, the
schema of values from the options of controllers. A test makes them again and compares.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import click
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from karpool.cli.document_kinds import DOCUMENTS
from karpool.cli.main import commands
from karpool.consolidation.execution.metrics import ConsolidationMetrics
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.dashboard.options import DashboardOptions
from karpool.dashboard.server.metrics import DashboardMetrics
from karpool.estimator.serving.failure_reporting import FailureGauges
from karpool.estimator.serving.metrics import EstimatorMetrics
from karpool.estimator.serving.options import EstimatorOptions
from karpool.gpu.controller.metrics import ScaleUpMetrics
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.gpu.process import COMPONENT
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.transport.http import HttpTransport
from karpool.manager.controller import Environment
from karpool.manager.metrics import QueueMetrics, describe_process, follow_leadership
from karpool.manager.options import OptionField, Options, option_fields
from karpool.manager.readiness import ManagerStatus
from karpool.scheduler.controller.controller import QUEUE
from karpool.scheduler.controller.metrics import SchedulerMetrics
from karpool.scheduler.controller.options import ClusterSummaryOptions, DeschedulerOptions, SchedulerOptions
from karpool.scheduler.descheduler.descheduler import Descheduler
from karpool.scheduler.estimates.local_rooms import LocalRooms
from karpool.scheduler.estimates.room_keeper import RoomKeeper
from karpool.scheduler.estimates.room_metrics import follow_rooms
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.metrics import PromiseMetrics, follow_estimators
from karpool.scheduler.summaries.summary_writer import SummaryMetrics

DOCS = Path(__file__).resolve().parent.parent / "docs"
_NO_EFFECT = "Accepted for compatibility; has no effect."

# The command line

_CLI_HEAD = """# Command line

This page is generated from the code by `python tools/build_reference.py`. `karpool COMMAND --help` prints the
same text, and `kubectl karpool COMMAND` is the same command. The commands that replace Go binaries
(`estimator`, `scheduler`, `descheduler`) parse flags as Go does: `--flag`, `--flag=false`, `--flag value`,
lists with commas or by repeating the flag.

Results go to stdout, everything else to stderr; a terminal also shows progress. Documents of `-o json` have
[schemas](schemas/NodeUsageList.json), one per kind: `karpool schema` lists and prints them. Exit codes:
0 success, 1 failure, 2 wrong usage, 3 a valid answer of "does not fit", 130 interrupted.
"""


def cli_page() -> str:
    context = click.Context(commands, info_name="karpool")
    parts = [_CLI_HEAD, "## karpool\n", _flags(commands, context)]
    return "\n".join([*parts, *_subcommands(commands, context)]).rstrip() + "\n"


def _subcommands(group: click.Group, parent: click.Context) -> Iterator[str]:
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent)
        yield f"## {context.command_path}\n"
        yield (
            "```text\n" + " ".join([context.command_path, *command.collect_usage_pieces(context)]) + "\n```\n"
        )
        yield _prose(command.help)
        yield _flags(command, context)
        yield _prose(command.epilog)
        if isinstance(command, click.Group):
            yield from _subcommands(command, context)


def _prose(text: str | None) -> str:
    """Help as people wrote it, each paragraph on one line. Angle brackets are not markup here."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text or "").replace("\b", ""))
    return "\n\n".join(_plain(" ".join(paragraph.split())) for paragraph in paragraphs) + "\n" if text else ""


def _flags(command: click.Command, context: click.Context) -> str:
    rows, without_effect = [], []
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option) or parameter.hidden or "--help" in parameter.opts:
            continue
        text = parameter.help or ""
        if _NO_EFFECT in text:
            without_effect.append(f"`--{(parameter.name or '').replace('_', '-')}`")
            continue
        names = ", ".join(f"`{opt}`" for opt in (*parameter.opts, *parameter.secondary_opts))
        rows.append(f"| {names} | {_kind(parameter, context)} | {_default(parameter)} | {_plain(text)} |")
    table = "\n".join(("| Flag | Value | Default | |", "|---|---|---|---|", *rows, "")) if rows else ""
    if without_effect:
        table += f"\nAccepted without effect: {', '.join(without_effect)}.\n"
    return table


def _kind(option: click.Option, context: click.Context) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return _plain(" or ".join(f"`{choice}`" for choice in option.type.choices))
    metavar = option.metavar or option.type.name.lower()
    return _plain(metavar.replace(" range", "")) + (", repeatable" if option.multiple else "")


def _default(option: click.Option) -> str:
    value: Any = option.default
    if not option.show_default or value is None or callable(value) or value in ("", (), []):
        return ""
    if option.secondary_opts:
        return f"`{(option.opts if value else option.secondary_opts)[0]}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(map(str, value)) if isinstance(value, (tuple, list)) else value}`"


def _plain(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


# Metrics

_METRICS_HEAD = """# Metrics

This page is generated from the code by `python tools/build_reference.py`. Every process serves its metrics at
`/metrics` (`--metrics-bind-address`). The dashboard serves them on the port of its page, with the same access
rules.

Metrics with the names of other projects (`karmada_...`, `karpenter_...`, `scheduler_...`, `workqueue_...`)
are **stable**: names, labels and meaning do not change. `karpool_...` metrics are **beta**: the changelog
announces a change one version ahead. Label values come from short, known lists or from objects of operators
(clusters, pools). Labels that pods of users can set (GPU pools and models) have at most 200 values, then
`other`. Pod names and error texts are never labels. Counters start at zero.
"""


class _Recording(CollectorRegistry):
    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.collectors.append(collector)


def _every_process(registry: CollectorRegistry) -> None:
    describe_process(registry)
    ManagerStatus().follow(registry)


def _estimator(registry: CollectorRegistry) -> None:
    EstimatorMetrics(registry)
    FailureGauges(registry)


def _scheduler(registry: CollectorRegistry) -> None:
    SchedulerMetrics(registry, dict)
    QueueMetrics(registry, QUEUE, float)
    PromiseMetrics(registry).follow(PromiseLedger(), float)
    follow_estimators(registry, dict)
    rooms = LocalRooms(None, RealClock())
    follow_rooms(registry, rooms, RoomKeeper(cast(Any, None), rooms, RealClock()), list)


def _descheduler(registry: CollectorRegistry) -> None:
    clock = RealClock()
    transport = HttpTransport(ClusterConfig("nowhere", "http://localhost"), clock)  # which is never asked
    client = Client(transport, clock)
    environment = Environment({"nowhere": client}, EventRecorder(client, "descheduler"), registry)
    Descheduler(environment, cast(Any, None))


def _cluster_summary(registry: CollectorRegistry) -> None:
    SummaryMetrics(registry)


def _gpu(registry: CollectorRegistry) -> None:
    ScaleUpMetrics(registry)
    QueueMetrics(registry, COMPONENT, float)
    follow_leadership(registry, "karpool_gpu", bool)


def _consolidator(registry: CollectorRegistry) -> None:
    ConsolidationMetrics(registry)
    follow_leadership(registry, "karpool_consolidation", bool)


def _dashboard(registry: CollectorRegistry) -> None:
    DashboardMetrics(registry)


PROCESSES: dict[str, Callable[[CollectorRegistry], None]] = {
    "karpool estimator": _estimator,
    "karpool scheduler": _scheduler,
    "karpool descheduler": _descheduler,
    "karpool cluster-summary": _cluster_summary,
    "karpool consolidator": _consolidator,
    "karpool gpu-scaler": _gpu,
    "karpool dashboard": _dashboard,
}
_LIBRARY = ("process_", "python_")  # which of them there are depends on the platform
_LIBRARY_NOTE = "The Prometheus client adds `process_...` and `python_...`.\n"
_GPU_NOTE = (
    "With `--original-metric-names` each `karpool_gpu_...` metric of scale-ups is also exported as "
    "`tensor_fusion_...`.\n"
)


def metrics_page() -> str:
    everywhere = _described(_every_process)
    ours = (row for row in everywhere if not row[0].startswith(_LIBRARY))
    parts = [_METRICS_HEAD, "## Every process\n", _table(ours), _LIBRARY_NOTE]
    for command, make in PROCESSES.items():
        parts += [f"## {command}\n", _table(row for row in _described(make) if row not in everywhere)]
        if make is _gpu:
            parts.append(_GPU_NOTE)
    return "\n".join(parts)


Row = tuple[str, str, tuple[str, ...], str]  # name, kind, labels, text


def _described(make: Callable[[CollectorRegistry], None]) -> list[Row]:
    registry = _Recording()
    make(registry)
    return sorted(row for collector in registry.collectors for row in _rows(collector))


def _rows(collector: Collector) -> Iterator[Row]:
    if isinstance(collector, MetricWrapperBase):
        labels: tuple[str, ...] = tuple(collector._labelnames)
        yield from ((*_head(metric), labels, metric.documentation) for metric in collector.describe())
        return
    for metric in collector.collect():
        yield (*_head(metric), tuple(getattr(metric, "_labelnames", None) or ()), metric.documentation)


def _head(metric: Metric) -> tuple[str, str]:
    return metric.name + ("_total" if metric.type == "counter" else ""), metric.type


def _table(rows: Iterable[Row]) -> str:
    lines = ["| Metric | Kind | Labels | Level | |", "|---|---|---|---|---|"]
    for name, kind, labels, text in rows:
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {kind} | {shown} | {_level(name)} | {_plain(text)} |")
    return "\n".join([*lines, ""])


def _level(name: str) -> str:
    return "beta" if name.startswith("karpool_") else "stable"


# The chart

_CHART = Path("../deploy/helm/karpool")  # from DOCS
OPTIONS: tuple[type[Options], ...] = (
    EstimatorOptions,
    SchedulerOptions,
    DeschedulerOptions,
    ClusterSummaryOptions,
    ConsolidatorOptions,
    GpuScalerOptions,
    DashboardOptions,
)
_DURATION = r"([0-9]+(\.[0-9]+)?(ms|s|m|h))+"


def values_schema() -> str:
    """The schema of the chart's values, where values are options of controllers; the rest is as it stands."""
    schema = json.loads((DOCS / _CHART / "values.schema.json").read_text())
    values = yaml.safe_load((DOCS / _CHART / "values.yaml").read_text())
    for options in OPTIONS:
        for field in option_fields(options):
            if key := field.about.get("chart"):
                if key not in values[options.chart]:
                    raise SystemExit(
                        f"values.yaml: {options.chart}.{key} is missing, which --{field.name} names"
                    )
                described = _value_schema(field, values[options.chart][key])
                schema["properties"][options.chart]["properties"][key] = described
    return json.dumps(schema, indent=2) + "\n"


def _value_schema(field: OptionField, unset: Any) -> dict[str, Any]:
    """`unset` is the chart's own value: where it is empty or 0, the flag is not given."""
    if field.many:
        return {"description": field.help, "type": "array", "items": _one_value(field, None)}
    return {"description": field.help, **_one_value(field, unset)}


def _one_value(field: OptionField, unset: Any) -> dict[str, Any]:
    match field.kind:
        case "switch":
            return {"type": "boolean"}
        case "integer":
            least = field.least if unset is None or field.least is None else min(field.least, unset)
            ends = {"minimum": least, "maximum": field.most}
            return {"type": "integer", **{name: end for name, end in ends.items() if end is not None}}
        case "duration":
            return {"type": "string", "pattern": f"^$|^{_DURATION}$" if unset == "" else f"^{_DURATION}$"}
        case "choice":
            return {"enum": [*([""] if unset == "" else []), *field.choices]}
    text: dict[str, Any] = {"type": "string"}
    if pattern := field.about.get("pattern"):
        text["pattern"] = pattern
    elif field.default and not field.many:
        text["minLength"] = 1
    return text


def chart_options() -> str:
    """For each controller, the arguments that its values stand for."""
    parts = ["{{- /* Made from the options of controllers by tools/build_reference.py. */ -}}\n"]
    for options in OPTIONS:
        lines = "".join(
            _argument(field, key) for field in option_fields(options) if (key := field.about.get("chart"))
        )
        parts.append(f'{{{{- define "karpool.options.{options.chart}" -}}}}\n{lines}{{{{- end }}}}\n')
    return "\n".join(parts)


def _argument(field: OptionField, key: str) -> str:
    if field.kind == "switch":
        flag = f"--{field.name}=true" if field.go else f"--{field.name}"
        return f"{{{{- if .{key} }}}}\n- {flag}\n{{{{- end }}}}\n"
    form, value = ("%d", "(int .)") if field.kind == "integer" else ("%s", ".")
    block = "range" if field.many and not field.go else "with"
    if field.many and field.go:
        value = '(join "," .)'
    shown = f'{{{{ printf "--{field.name}={form}" {value} | quote }}}}'
    return f"{{{{- {block} .{key} }}}}\n- {shown}\n{{{{- end }}}}\n"


def scale_up_definition() -> str:
    """The program's own, in the chart: Helm warns of links that leave it."""
    return (DOCS.parent / "src/karpool/gpu/data/scaleups.yaml").read_text()


_KINDS_HEAD = """# Custom resources of Karpool

This page is generated from `src/karpool/gpu/data/scaleups.yaml` by `python tools/build_reference.py`.
`kubectl explain scaleups` shows the same text. Karpool has no other custom resource. It also writes objects,
labels and annotations of Kubernetes, Karmada and Karpenter, which the pages
[consolidation](consolidation.md#the-record), [scheduler](scheduler.md) and [GPU scale-up](gpu.md) list.
"""


def kinds_page() -> str:
    definition = yaml.safe_load(scale_up_definition())
    names, version = definition["spec"]["names"], definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    rows = "".join(_field_rows("", schema))
    title = f"## {names['kind']} ({definition['spec']['group']}/{version['name']})"
    return f"{_KINDS_HEAD}\n{title}\n\n{schema['description']}\n\n| Field | Type | |\n|---|---|---|\n{rows}"


def _field_rows(path: str, schema: dict[str, Any]) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        inner = (
            field.get("items", {}) if field["type"] == "array" else field.get("additionalProperties", field)
        )
        kind = f"list of {inner.get('type', 'any')}" if field["type"] == "array" else field["type"]
        here = f"{path}.{name}" if path else name
        needed = "Required. " if name in schema.get("required", ()) else ""
        bounds = ", ".join(f"{words} {field[key]}" for key, words in _BOUNDS.items() if key in field)
        allowed = ", ".join(f"`{value}`" for value in field.get("enum", ()))
        about = " ".join(text for text in (field.get("description", ""), bounds, allowed) if text)
        yield f"| `{here}` | {kind} | {_plain(needed + about)} |\n"
        yield from _field_rows(f"{here}[]" if field["type"] == "array" else here, inner)


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "maxLength": "characters at most",
    "maxItems": "items at most",
}


# The chart's README

_README_HEAD = """# Karpool Helm chart

Karpool plans the capacity of a fleet of Kubernetes clusters. The chart installs estimators, scheduler,
descheduler, consolidator, GPU scaler and dashboard. Every component is disabled by default. Components that
write have their own roles. The consolidator only plans until you set `consolidator.dryRun=false`.

<!-- executed by e2e/test_the_chart_is_installed.py -->
```
helm install karpool karpool-chart-0.1.0.tgz -n karpool-system --create-namespace \\
  --set image.repository=REGISTRY/karpool --set consolidator.enabled=true
helm test karpool -n karpool-system
```

`helm test` checks that every enabled component answers. An upgrade of the chart upgrades the CRDs; they stay
when the chart is uninstalled. `docs/install.md` in the repository says which component runs in which cluster,
and what its role allows.

Certificates for schedulers and estimators come from cert-manager (`certManager.enabled`), which renews them,
or from your Secrets (`estimator.tls.secretName`, `scheduler.estimators.tls.secretName`). Components reload
changed files, so a renewed Secret needs no restart. For the same reason the kubeconfig of a member cluster
should use `tokenFile` for its token.

## Values

Keys at the top level are defaults for all components; the same key inside a component takes precedence. These
tables are generated from `values.yaml` by `python tools/build_reference.py`.
"""
_LINE = re.compile(r"^( *)([A-Za-z]+):.*?(?: +# (.*))?$")


def chart_readme() -> str:
    """A table for each part of the values, with the comments beside them."""
    text = (DOCS / _CHART / "values.yaml").read_text()
    about = _comments(text)
    single: list[str] = []
    parts: list[str] = []
    for key, value in yaml.safe_load(text).items():
        if not isinstance(value, dict) or not value:
            single.append(_value_row((key,), value, about))
            continue
        rows = "".join(_value_row(path, leaf, about) for path, leaf in _leaves((key,), value))
        parts.append(
            f"\n### {key}\n\n{about.get((key, ''), '')}\n\n{_VALUES_TABLE}{rows}".replace("\n\n\n", "\n")
        )
    return f"{_README_HEAD}\n{_VALUES_TABLE}{''.join(single)}{''.join(parts)}"


_VALUES_TABLE = "| Value | Default | |\n|---|---|---|\n"
_Path = tuple[str, ...]


def _comments(text: str) -> dict[_Path, str]:
    """What stands beside each value; what stands above a part, under its name and an empty one."""
    about: dict[_Path, str] = {}
    above: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            above.append(line.removeprefix("#").strip())
        elif match := _LINE.match(line):
            indent, key, beside = match.groups(default="")
            path[len(indent) // 2 :] = [key]
            about[tuple(path)] = beside
            about[key, ""] = " ".join(above)
            above = []
        else:
            above = []
    return about


def _leaves(path: _Path, value: Any) -> Iterator[tuple[_Path, Any]]:
    if isinstance(value, dict) and value and len(path) < 3:
        for key, inner in value.items():
            yield from _leaves((*path, key), inner)
    else:
        yield path, value


def _value_row(path: _Path, value: Any, about: dict[_Path, str]) -> str:
    beside = about.get(path) or (about.get((path[0], ""), "") if len(path) == 1 else "")
    return f"| `{'.'.join(path)}` | `{_plain(json.dumps(value))}` | {_plain(beside)} |\n"


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "metrics.md": metrics_page,
    "chart.md": chart_readme,
    "kinds.md": kinds_page,
    str(_CHART / "values.schema.json"): values_schema,
    str(_CHART / "templates" / "_options.tpl"): chart_options,
    str(_CHART / "README.md"): chart_readme,
    str(_CHART / "files" / "scaleups.yaml"): scale_up_definition,
}


def _schema_page(kind: str) -> str:
    return json.dumps(DOCUMENTS[kind].schema(kind), indent=1) + "\n"


PAGES |= {f"schemas/{kind}.json": partial(_schema_page, kind) for kind in DOCUMENTS}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
