"""Which answer, or which refusal, a request gets: the rules that are not arithmetic.

Messages are those of Karmada's server, because people search for them.
"""

from collections.abc import Collection, Iterable


class RequestRefused(Exception):
    """The request is answered with an error; the text is for the caller."""


class WrongCluster(RequestRefused):
    pass


def check_cluster(asked: str, served: Collection[str]) -> None:
    if asked not in served:
        desired = ", ".join(sorted(served)[:20])
        raise WrongCluster(f"cluster name does not match, got: {asked[:253]}, desire: {desired}")


def failure(reasons: Iterable[str], *, sets: bool) -> RequestRefused:
    """What a plugin's Error becomes. Upstream reads quantities and affinities inside a plugin, so bad
    ones are reported in the same words."""
    what = "component sets: estimate components" if sets else "replicas: estimate replica"
    return RequestRefused(f"failed to estimate {what} plugins fails with [{' '.join(reasons)}]")
