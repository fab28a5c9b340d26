"""Selectors of devices mean what Kubernetes' own compiler says: verdicts of the Go module (v0.36.6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.model.dra.device import AttributeValue, DeviceId, DraCapacity, DraDevice
from karpool.model.dra.selector import SelectorError, compile_selector
from karpool.model.quantity import nano_value

DEVICE = DraDevice(
    DeviceId("gpu.example.com", "p", "d"),
    attributes=(
        ("model", AttributeValue("string", ("A100",))),
        ("numa", AttributeValue("int", (1,))),
        ("mig", AttributeValue("bool", (True,))),
        ("cc", AttributeValue("version", ("8.9.0",))),
        ("pre", AttributeValue("version", ("8.9.0-rc.1",))),
        ("other.example.com/rack", AttributeValue("string", ("r1",))),
    ),
    capacity=(("memory", DraCapacity(nano_value("80Gi"))), ("cores", DraCapacity(nano_value("1500m")))),
    shareable=True,
)
OWN = 'device.attributes["gpu.example.com"]'
MEMORY = 'device.capacity["gpu.example.com"].memory'
TENS = "[1,2,3,4,5,6,7,8,9,10]"


def verdict(text: str) -> str:
    try:
        selector = compile_selector(text.replace("@", OWN).replace("#", MEMORY))
    except SelectorError:
        return "compile"
    try:
        return str(selector.matches(DEVICE))
    except SelectorError:
        return "error"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('device.driver == "gpu.example.com"', "True"),
        ('@.model == "A100" && @.numa == 1', "True"),
        ("@.model == 5", "False"),
        ('@.numa < "x"', "error"),
        ("@.numa == 1.0", "True"),
        ("1 == 1.0", "compile"),
        ("@.numa + 1.0 == 2.0", "error"),
        ("@.mig", "True"),
        ("@.numa", "error"),
        ("@.nothere || true", "True"),
        ("@.nothere && false", "False"),
        ("@.nothere == 1", "error"),
        ("has(@.model) && !has(@.nothere)", "True"),
        ("has(device.attributes.foo)", "True"),
        ('"none" in device.attributes', "False"),
        ('device.attributes["none"].x == 1', "error"),
        ('@.?nothere.orValue("x") == "x"', "True"),
        ('device.attributes[?"none"].?x.hasValue()', "False"),
        ('@.?model.optMap(m, m + "x").orValue("") == "A100x"', "True"),
        ('@.cc == semver("8.9.0") && @.pre.isLessThan(@.cc)', "True"),
        ('@.cc == "8.9.0"', "error"),
        ('"8.9.0" == @.cc', "False"),
        ('semver("1.2") == semver("1.2.0")', "error"),
        ('semver("v01.2", true) == semver("1.2.0")', "True"),
        ('# == quantity("81920Mi")', "True"),
        ('# > quantity("1")', "compile"),
        ('# == "80Gi"', "compile"),
        ('#.isGreaterThan(quantity("lots"))', "error"),
        ('quantity("50k").add(20) == quantity("50020")', "True"),
        ('quantity("50020") == quantity("50k").add(20)', "error"),
        ("sign(#) == 1 && #.asInteger() == 85899345920", "True"),
        ('device.capacity["gpu.example.com"].cores.asInteger() == 1', "error"),
        ("device.allowMultipleAllocations", "True"),
        ("true || device.nope == 1", "compile"),
        ('devices.driver == "x"', "compile"),
        ("device.driver > 5", "compile"),
        ('"yes"', "compile"),
        ("dyn(true)", "compile"),
        ('[1, "a"].size() == 2', "compile"),
        ("[1, @.model].size() == 2", "compile"),
        ('@.model.exists(x, x == "A")', "compile"),
        ("[0, 1].exists(x, 1 / x == 1)", "True"),
        ("[0, 1].all(x, 1 / x == 1)", "error"),
        ("[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]", "True"),
        ("[1, 2, 3].existsOne(x, x == 2)", "compile"),
        ("[1, 2, 3].all(i, v, v == i + 1)", "True"),
        ('@.model.matches("(")', "compile"),
        ('@.model.substring(1, 20) == "1"', "error"),
        ("cel.bind(a, @, a.model == 'A100' && a.numa == 1)", "True"),
        ("cel.bind(a, @.nothere, true)", "True"),
        ("9223372036854775807 + 1 > 0", "error"),
        ("9223372036854775808 > 0", "compile"),
        ("-9223372036854775808 < 0", "True"),
        ("1u == 1", "compile"),
        ("(((", "compile"),
    ],
)
def test_verdicts_of_the_go_compiler(text: str, expected: str) -> None:
    assert verdict(text) == expected


@pytest.mark.long
@pytest.mark.parametrize(("loops", "expected"), [(4, "True"), (6, "error")])
def test_a_selector_that_costs_too_much_is_an_error_that_nothing_absorbs(loops: int, expected: str) -> None:
    names = "abcdef"[:loops]
    text = "".join(f"{TENS}.all({name}, " for name in names) + " + ".join(names) + " > 0" + ")" * loops
    assert verdict(text) == expected
    assert verdict(f"{text} || true") == expected


def test_a_list_is_an_error_where_lists_are_not_enabled() -> None:
    device = DraDevice(DEVICE.id, (("roots", AttributeValue("string", ("r1", "r2"), is_list=True)),))
    with pytest.raises(SelectorError, match="roots"):
        compile_selector("true").matches(device)
    assert compile_selector(f'{OWN}.roots.includes("r2")', lists=True).matches(device)


@given(st.text(alphabet="device.attributes[\"'x]()&|!?:<>=+-*/% 01{},~\n", max_size=60))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert verdict(text) in ("True", "False", "error", "compile")
