"""`--help`: what a flag is for, what happens without it, and in which unit it counts."""

import re

import click

from karpool.cli.main import commands

# Words by which a text says what is done without the flag.
SAYS_SO = re.compile(
    r"default|without|if none|instead of|until|has no effect|repeat|nothing in the file", re.IGNORECASE
)
# Whose absence can only mean that nothing of the kind is there.
OBVIOUS = {
    "--prometheus-url",
    "--prometheus-token-file",
    "--prometheus-ca-file",
    "--device-shapes",
    "--template-path",
    "--from-snapshot",
    "--replay",
    "--decisions",
    "--node-name",
    "--snapshot",
    "--karmada-kubeconfig",
    "--karmada-context",
}
SHOWS_UNIT = re.compile(r"\d(ms|s|m|h|d)\b|default")


def flags(command=commands, path="karpool"):
    context = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from flags(command.get_command(context, name), f"{path} {name}")
    for flag in command.params:
        if isinstance(flag, click.Option) and not flag.hidden and (record := flag.get_help_record(context)):
            yield path, flag, *record


def test_every_flag_says_what_it_is_for():
    assert [(path, shown) for path, flag, shown, _ in flags() if not flag.help] == []


def test_every_flag_that_takes_a_value_says_what_happens_without_it():
    silent = {
        (path, flag.opts[-1], text)
        for path, flag, _, text in flags()
        if not flag.is_flag
        and not flag.required
        and not SAYS_SO.search(text)
        and flag.opts[-1] not in OBVIOUS
    }

    assert silent == set()


def test_every_duration_shows_one():
    assert [
        (path, shown)
        for path, _, shown, text in flags()
        if "DURATION" in shown and not SHOWS_UNIT.search(text)
    ] == []
