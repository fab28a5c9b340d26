"""The house is tidy, and the check that says so would notice if it were not."""

from pathlib import Path

import pytest
from tools import check_house

PROJECT = '[project.scripts]\nkarpool = "karpool.cli.main:main"\n'
MAIN = "from karpool.model.used import used\n\ndef main():\n    return used()\n"


def house(folder: Path, **files: str) -> list[str]:
    """What is wrong with a product of these modules; underscores in names stand for folders."""
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, text in {
        "karpool/__init__": '"""All."""',
        "karpool/__main__": "from karpool.cli.main import main\n\nmain()\n",
        "karpool/cli/__init__": '"""Commands."""',
        "karpool/cli/main": MAIN,
        "karpool/model/__init__": '"""Values."""',
        "karpool/model/used": "def used():\n    return 1\n",
        "karpool_fleet/__init__": '"""Clusters."""',
        **files,
    }.items():
        path = folder / "src" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return check_house.problems(folder, api=())


@pytest.mark.long
def test_karpool_is_tidy() -> None:
    assert check_house.problems() == []


def test_a_tidy_house_has_no_problems(tmp_path: Path) -> None:
    assert house(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        pytest.param(
            "karpool/model/used",
            "def used():\n    return 1\n\ndef unused():\n    return used()\n",
            "karpool.model.used:unused is used by no command",
            id="a function that nobody calls",
        ),
        pytest.param(
            "karpool/model/used",
            "class Lonely:\n    pass\n\ndef used():\n    return 1\n",
            "karpool.model.used:Lonely is used by no command",
            id="a class that nobody uses",
        ),
        pytest.param(
            "karpool/model/lonely",
            "VALUE = 1\n",
            "module karpool.model.lonely is used by no command",
            id="a module that nobody imports",
        ),
        pytest.param(
            "karpool/model/__init__",
            "",
            "package karpool.model has no docstring: say what it holds and where to start",
            id="a package without a word",
        ),
        pytest.param(
            "karpool/model/__init__",
            '"""' + "\n".join("abcdefg") + '\n"""',
            "the docstring of package karpool.model is longer than 6 lines",
            id="a package with too many",
        ),
    ],
)
def test_what_is_not_tidy_is_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    assert house(tmp_path, **{name: text}) == [problem]


def test_a_class_name_is_used_once_in_the_product_and_the_fleet(tmp_path: Path) -> None:
    user = "from karpool.model.used import Cluster\n\ndef main():\n    return Cluster()\n"
    twin = "class Cluster:\n    pass\n"

    assert house(
        tmp_path,
        **{"karpool/cli/main": user, "karpool/model/used": twin, "karpool_fleet/twin": twin},
    ) == ["class Cluster is in karpool.model.used, karpool_fleet.twin: give each its own name"]


def test_a_folder_is_no_heap(tmp_path: Path) -> None:
    names = [f"part_{number}" for number in range(check_house.MODULES_MAX)]
    imports = "".join(f"import karpool.model.{name}\n" for name in names)
    parts = {f"karpool/model/{name}": "VALUE = 1\n" for name in names}

    (problem,) = house(tmp_path, **{**parts, "karpool/cli/main": imports + MAIN})

    assert problem.endswith("has 21 modules, more than 20: give parts of it a folder")


def test_commands_in_a_table_and_registered_ones_are_reached(tmp_path: Path) -> None:
    main = 'TABLE = {"plan": ("karpool.cli.plan", "plan", "Show.")}\n\ndef main():\n    return TABLE\n'
    plan = "def plan():\n    return 1\n\n@plan.command()\ndef registered():\n    return 2\n"

    assert house(tmp_path, **{"karpool/cli/main": main, "karpool/cli/plan": plan}) == [
        "module karpool.model is used by no command",
        "module karpool.model.used is used by no command",
    ]


def test_what_the_documentation_promises_is_reached_and_must_be_there(tmp_path: Path) -> None:
    alone = {"karpool/model/alone": "def promised():\n    return 1\n"}
    assert "module karpool.model.alone is used by no command" in house(tmp_path, **alone)
    assert check_house.problems(tmp_path, api=["karpool.model.alone:promised"]) == []
    assert check_house.problems(tmp_path, api=["karpool.model.alone:promised", "karpool.model.gone:x"]) == [
        "the API names karpool.model.gone:x, which is not there"
    ]
