import stat
from pathlib import Path

import pytest
import yaml

from karpool.kube.config.kubeconfig import load
from karpool.kube.errors import ConfigError
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, kubeconfig, write_kubeconfig

EAST = EmbeddedClusterEntry("east", "https://127.0.0.1:6443", token="secret-east", ca_pem=b"PEM")
WEST = EmbeddedClusterEntry("west", "http://127.0.0.1:6444", namespace="team")


def test_every_cluster_is_a_context_and_the_first_is_current(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "config"

    write_kubeconfig(path, [EAST, WEST])

    current, west = load(path), load(path, context="west")
    assert (current.server, current.user.token, current.ca.data) == (EAST.server, "secret-east", b"PEM")
    assert (west.server, west.namespace, west.user.anonymous) == (WEST.server, "team", True)
    assert yaml.safe_load(path.read_text()) == kubeconfig([EAST, WEST])


def test_only_the_owner_can_read_it_even_if_it_was_open_before(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("")
    path.chmod(0o644)

    write_kubeconfig(path, [EAST])

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["config"]


def test_our_own_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "config"
    write_kubeconfig(path, [EAST, WEST])

    write_kubeconfig(path, [WEST])

    assert yaml.safe_load(path.read_text()) == kubeconfig([WEST])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(
            yaml.safe_dump({"clusters": [{"name": "prod", "cluster": {"server": "x"}}]}), id="theirs"
        ),
        pytest.param(yaml.safe_dump({"clusters": []}), id="no clusters"),
        pytest.param("just text", id="text"),
        pytest.param("{", id="not YAML"),
        pytest.param("a: b\n---\nc: d\n", id="two documents"),
        pytest.param(
            yaml.safe_dump({"clusters": [*kubeconfig([EAST])["clusters"], {"name": "prod", "cluster": {}}]}),
            id="ours with another cluster added",
        ),
    ],
)
def test_a_file_with_anything_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)

    with pytest.raises(ConfigError, match="choose another file, or move this one"):
        write_kubeconfig(path, [EAST])
    assert path.read_text() == content


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")

    write_kubeconfig(tmp_path / "link", [EAST])

    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real").server == EAST.server


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="name a file that can be written"):
        write_kubeconfig(tmp_path / "file" / "config", [EAST])
    with pytest.raises(ConfigError, match="is a directory"):
        write_kubeconfig(tmp_path, [EAST])


def test_contexts_need_names_of_their_own() -> None:
    with pytest.raises(ConfigError, match="cluster east: the name occurs more than once"):
        kubeconfig([EAST, EAST])
    with pytest.raises(ConfigError, match="at least one cluster"):
        kubeconfig([])


def test_the_token_stays_out_of_messages() -> None:
    assert "secret" not in repr(EAST)
