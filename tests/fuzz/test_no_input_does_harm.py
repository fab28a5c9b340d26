"""Whatever bytes arrive: an answer or a refusal, soon.

Every target gets a few hundred inputs, always the same; `make fuzz` gives each of them new ones for a minute.
"""

import gzip
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.feeding import feed
from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS, Target

INPUTS = 150

each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@each_target
def test_good_examples_are_read(target: Target) -> None:
    for seed in target.seeds:
        target.reads(seed)


@each_target
def test_almost_good_input(target: Target) -> None:
    for seed in range(INPUTS):
        feed(target, mutated(target.seeds, Random(seed)), seed)


@each_target
@settings(max_examples=25)
@given(data=st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
def test_any_bytes(target: Target, data: bytes) -> None:
    feed(target, data, "hypothesis")


# What long runs found, by target.
FINDINGS = {
    "tabs where only the reader in C takes them": (
        "contract",
        b"format: karpool-contract/1\ndiscounts: [{name: d, familie\t\ts: [m5], percent: 12}]\n",
    ),
    "a key that is no text": (
        "manifests and snapshots",
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {yes: 1}\n",
    ),
    "a name as long as the file": (
        "kubeconfig",
        b"current-context: a\nclusters: [{name: c, cluster: {server: 'https://h'}}]\n"
        b"contexts: [{name: a, context: {cluster: c, user: u}}]\nusers: [{name: "
        + b"u" * 5_000
        + b", user: {token: t}}]\n",
    ),
    "a number as long as the text": ("device selector", b'"a".' + b"9" * 5_000),
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_what_was_found_once(finding: str) -> None:
    name, data = FINDINGS[finding]
    [target] = [target for target in TARGETS if target.name == name]
    feed(target, data, finding)


def _alias(number: int) -> bytes:
    return f"a{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n".encode()


BOMBS = {
    "nested lists": b"[" * 50_000,
    "nested objects": b'{"a":' * 50_000,
    "nested flow": b"{a: [" * 5_000,
    "indented": b"".join(b" " * each + b"a:\n" for each in range(2_000)),
    "aliases": b"a0: &a0 [x, x]\n" + b"".join(_alias(number) for number in range(1, 60)),
    "aliases in a catalogue": b"format: karpool-catalogue/1\nprovider: p\nregion: r\n"
    + b"x: &a0 [{name: a, labels: {}, capacity: {cpu: '1'}}]\n"
    + b"".join(b"y%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40))
    + b"types: *a39\n",
    "digits": b"9" * 200_000,
    "exponent": b"1e" + b"9" * 5_000,
    "one key many times": b"{" + b'"a":1,' * 5_000 + b'"a":1}',
    "documents": b"---\na: 1\n" * 1_000,
    "commas": b"," * 100_000,
    "empty lines": b"a:\n" + b"\n" * 300_000,
    "blanks": b"a" + b" \t" * 150_000 + b"b",
    "brackets": b"(" * 100_000,
    "terms": b"a=b," * 20_000,
    "groups": b"\x0b" * 100_000,  # start of a group, in protobuf
    "long length": b"\n\xff\xff\xff\xff\x07",
    "gzip": gzip.compress(b"\x00" * 8_000_000),
}


@pytest.mark.long
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_do_not_go_off(bomb: str) -> None:
    for target in TARGETS:
        feed(target, BOMBS[bomb], bomb)
