"""Manifests written for karmada-scheduler-estimator start this one unchanged."""

import pytest
from click.testing import CliRunner

from karpool.cli.run import estimator as command
from karpool.estimator.process import configs, tls_files
from karpool.estimator.serving.options import EstimatorOptions
from karpool.kube.errors import ConfigError
from karpool.manager import feature_gates
from karpool.manager.feature_gates import estimator_gates
from karpool.manager.options import ProbeOptions, option_fields, read_options
from karpool.model.errors import Invalid
from karpool.wire.addresses import ListenAddress, listener, resolve, service_name

FIELDS = {field.name: field for field in option_fields(EstimatorOptions)}
GO_DEFAULTS = {
    "kubeconfig": "",
    "master": "",
    "cluster-name": "",
    "server-port": 10352,
    "grpc-auth-cert-file": "",
    "grpc-auth-key-file": "",
    "grpc-client-ca-file": "",
    "insecure-skip-grpc-client-verify": False,
    "kube-api-qps": 20,
    "kube-api-burst": 30,
    "parallelism": 0,
    "metrics-bind-address": ":8080",
    "health-probe-bind-address": ":10351",
    "feature-gates": "",
    "enable-pprof": False,
    "profiling-bind-address": ":6060",
    "add-dir-header": False,
    "alsologtostderr": False,
    "alsologtostderrthreshold": "",
    "legacy-stderr-threshold-behavior": True,
    "log-backtrace-at": ":0",
    "log-dir": "",
    "log-file": "",
    "log-file-max-size": 1800,
    "log-flush-frequency": "5s",
    "log-text-info-buffer-size": "0",
    "log-text-split-stream": False,
    "logging-format": "text",
    "logtostderr": True,
    "one-output": False,
    "skip-headers": False,
    "skip-log-headers": False,
    "stderrthreshold": "2",
    "v": 0,
    "vmodule": "",
}
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: {current}
clusters:
- {{name: east, cluster: {{server: "http://127.0.0.1:1"}}}}
- {{name: west, cluster: {{server: "http://127.0.0.1:2"}}}}
contexts:
- {{name: east, context: {{cluster: east}}}}
- {{name: west, context: {{cluster: west}}}}
"""


@pytest.fixture
def started(monkeypatch):
    """What the command would run with."""
    seen = []

    async def run_process(controller, options, stop, **_):
        seen.append(options)

    monkeypatch.setattr("karpool.manager.manager.run_process", run_process)
    monkeypatch.setattr("karpool.cli.logging.configure", lambda verbosity, as_json: None)

    def start(*arguments):
        seen.clear()
        outcome = CliRunner().invoke(command.estimator, list(arguments))
        return outcome, seen[0] if seen else None

    return start


def test_every_flag_of_the_go_binary_has_its_default():
    assert {name: FIELDS[name].default for name in GO_DEFAULTS} == GO_DEFAULTS


def test_flags_without_effect_say_so(started):
    outcome, _ = started("--help")

    assert outcome.exit_code == 0
    for name in FIELDS:
        assert f"--{name}" in outcome.output
    assert FIELDS["log-dir"].full_help == "Accepted for compatibility; has no effect."


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            [
                "--kubeconfig=/etc/member1-kubeconfig",
                "--cluster-name=member1",
                "--grpc-auth-cert-file=/etc/karmada/pki/server/tls.crt",
                "--grpc-auth-key-file=/etc/karmada/pki/server/tls.key",
                "--grpc-client-ca-file=/etc/karmada/pki/server/ca.crt",
                "--metrics-bind-address=10.0.0.7:8080",
                "--health-probe-bind-address=10.0.0.7:10351",
                "--feature-gates=AllAlpha=true,AllBeta=true",
                "--logging-format=json",
                "--v=4",
            ],
            id="of the development manifests",
        ),
        pytest.param(
            ["--cluster-name", "member1", "-v=4", "--alsologtostderr", "--logtostderr=false"], id="of klog"
        ),
        pytest.param(["--cluster_name=member1", "--log_dir=/tmp", "-v", "2"], id="with underscores"),
    ],
)
def test_command_lines_of_manifests_are_understood(started, arguments):
    outcome, chosen = started(*arguments)

    assert outcome.exit_code == 0, outcome.output
    assert chosen.cluster_name == "member1"


def test_switches_and_lists_are_read_as_go_reads_them(started):
    _, chosen = started(
        "--cluster-name=c",
        "--insecure-skip-grpc-client-verify",
        "--logtostderr=false",
        "--plugins=NodeResourceEstimator,ResourceQuotaEstimator",
        "--plugins=-ResourceQuotaEstimator",
        "-v=4",
    )

    assert chosen.grpc.skips_client_verify is True
    assert chosen.logs.logtostderr is False
    assert chosen.plugins == ("NodeResourceEstimator", "ResourceQuotaEstimator", "-ResourceQuotaEstimator")
    assert chosen.logs.v == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], 'Options.ClusterName: Invalid value: "": clusterName cannot be empty'),
        (["--cluster-name=c", "--server-port=80888"], "must be a valid port between 0 and 65535"),
        (["--cluster-name=c", "--plugins=NodeResourceEstimater"], "is not a plugin; known are"),
        (["--cluster-name=c", "--node-capacity-providers=mesos"], 'unknown node capacity provider "mesos"'),
        (
            ["--cluster-name=c", "--plugins=ResourceQuotaEstimator", "--node-capacity-providers=karpenter"],
            "--node-capacity-providers requires NodeResourceEstimator",
        ),
        (["--cluster-name=c", "--feature-gates=NoSuchGate=true"], "is not a gate"),
        (["--cluster-name=c", "--feature-gates=AllAlpha"], "must be Name=true or Name=false"),
        (["--cluster-name=c", "--metrics-bind-address=8080"], "must be host:port"),
        (["--cluster-name=c", "--plugin-timeout=soon"], "plugin-timeout"),
        (["--cluster-name=c", "--kube-api-burst=-1"], "must not be negative"),
        (["--cluster-name=c", "--v=loud"], "is not a whole number"),
        (["--cluster-name=c", "--logging-format=xml"], "logging-format"),
        (["--cluster-name=c", "--fleet=perhaps"], "neither true nor false"),
        (["--no-such-flag"], "no-such-flag"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(started, arguments, words):
    outcome, chosen = started(*arguments)

    assert outcome.exit_code == 2
    assert words in outcome.output
    assert chosen is None


def test_gates_have_karmadas_defaults_and_groups():
    assert not estimator_gates()[feature_gates.RESOURCE_QUOTA]
    assert not estimator_gates()[feature_gates.OVERCOMMIT_PROTECTION]
    assert estimator_gates("AllAlpha=true")[feature_gates.RESOURCE_QUOTA]
    both = estimator_gates("AllAlpha=true,ResourceQuotaEstimate=false")
    assert not both[feature_gates.RESOURCE_QUOTA]
    assert both[feature_gates.OVERCOMMIT_PROTECTION]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (":8080", ListenAddress("", 8080)),
        ("10.0.0.7:8080", ListenAddress("10.0.0.7", 8080)),
        ("[fd00::7]:8080", ListenAddress("fd00::7", 8080)),
        ("0", None),
    ],
)
def test_addresses_are_host_and_port(text, found):
    assert listener("--metrics-bind-address", text) == found


@pytest.mark.parametrize("text", ["", ":", "host", ":99999", ":-1", ":٣"])
def test_other_addresses_are_refused(text):
    with pytest.raises(Invalid):
        listener("--metrics-bind-address", text)


def test_equal_addresses_are_listened_on_once():
    assert ProbeOptions(health_probe_bind_address=":8080").addresses == (ListenAddress("", 8080),)


@pytest.mark.parametrize(
    ("flags", "mutual"),
    [
        ({}, None),
        ({"grpc-auth-cert-file": "c", "grpc-client-ca-file": "ca"}, None),
        ({"grpc-auth-cert-file": "c", "grpc-auth-key-file": "k"}, False),
        ({"grpc-auth-cert-file": "c", "grpc-auth-key-file": "k", "grpc-client-ca-file": "ca"}, True),
        (
            {
                "grpc-auth-cert-file": "c",
                "grpc-auth-key-file": "k",
                "grpc-client-ca-file": "ca",
                "insecure-skip-grpc-client-verify": True,
            },
            False,
        ),
    ],
)
def test_tls_follows_the_table_of_the_go_binary(flags, mutual):
    files = tls_files(chosen(cluster_name="c", **flags).grpc)

    assert (None if files is None else files.client_ca is not None) is mutual


def test_services_are_found_by_prefix_and_cluster():
    name = service_name("member1")

    assert resolve(None, "karmada-system", name, 10352) == [
        "karmada-scheduler-estimator-member1.karmada-system.svc.cluster.local:10352",
        "karmada-scheduler-estimator-member1.karmada-system.svc:10352",
    ]


# Which clusters


def chosen(**flags):
    return read_options(EstimatorOptions, {name.replace("_", "-"): value for name, value in flags.items()})


def test_one_cluster_is_the_current_context_under_its_karmada_name(tmp_path):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(current="west"))

    (config,) = configs(chosen(kubeconfig=str(path), cluster_name="member1"))
    (elsewhere,) = configs(chosen(kubeconfig=str(path), cluster_name="member1", master="http://127.0.0.1:9/"))

    assert (config.name, config.server) == ("member1", "http://127.0.0.1:2")
    assert elsewhere.server == "http://127.0.0.1:9"


def test_a_fleet_is_every_context_of_a_file_or_every_file_of_a_folder(tmp_path):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(current="west"))
    folder = tmp_path / "members"
    folder.mkdir()
    (folder / "north-kubeconfig").write_text(KUBECONFIG.format(current="east"))
    (folder / "south.yaml").write_text(KUBECONFIG.format(current="west"))
    (folder / "..data").mkdir()

    contexts = configs(chosen(kubeconfig=str(path), fleet=True))
    files = configs(chosen(kubeconfig=str(folder), fleet=True))

    assert [(context.name, context.server[-1]) for context in contexts] == [("east", "1"), ("west", "2")]
    assert [(file.name, file.server[-1]) for file in files] == [("north", "1"), ("south", "2")]


def test_a_fleet_without_clusters_is_refused(tmp_path):
    for kubeconfig in ("", str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(ConfigError):
            configs(chosen(kubeconfig=kubeconfig, fleet=True))
