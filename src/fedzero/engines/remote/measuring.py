"""The quality of a model, from the figures of several sites; no single site is believed alone.

Sites whose figures cannot be true (`oracles.ranges`) are left out first. If all sites have the same held-out data,
their figures must agree up to rounding; the lower median of the group that agrees is recorded, if the group is more
than half of the sites. If each site has its own data, the lower median over all sites is recorded, one figure per site.
A lower median is a figure that some site sent, so fewer than half of the sites cannot move it beyond the figures of the
others. (With only two such sites nobody can tell which one is wrong: the mean is recorded, weighted by clients.) In
both cases a site that differs from most others is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fedzero.engines.remote.messages import Measured
from fedzero.errors import Refused
from fedzero.links.bounds import FEWEST
from fedzero.oracles import Metrics
from fedzero.oracles.ranges import strange
from fedzero.rounds.votes import leading

MEASURING = 3
"""Number of sites that evaluate the model; all sites do if these do not agree."""
ROUNDING = 0.01
"""Two figures that differ by less, relatively or absolutely, count as equal: sites have different processors, and the
last bit may change a prediction."""
MOST_METRICS, LONGEST_NAME = 64, 64
"""Limits for metrics other than loss and accuracy: their number, and the length of a name."""


def checked(measured: Measured) -> Measured:
    """The same evaluation; raises `Refused` if its metrics are unfit for the ledger."""
    others = {} if measured.metrics is None else measured.metrics.others
    if len(others) > MOST_METRICS:
        raise Refused(f"sent {len(others)} metrics where at most {MOST_METRICS} are expected")
    for name in others:
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise Refused(f"sent a metric whose name is not 1 to {LONGEST_NAME} printable characters")
    return measured


def settled(found: Mapping[str, Measured], least: float) -> bool:
    """Whether no other site has to be asked: all have the same data, and the same figures for the same model.

    least: the smallest possible loss of the task.
    """
    first, *others = found.values()
    if first.own or first.metrics is None or strange(first.metrics, least):
        return False
    return all(_same(first, other) for other in others)


def combined(
    found: Mapping[str, Measured], clients: Mapping[str, int], least: float
) -> tuple[Metrics | None, dict[str, str]]:
    """The metrics to record, None if the sites' figures do not allow any; and by site, what is wrong with its figures.

    found: by site, all of the same model. clients: how many each site has. least: the smallest possible loss of the
    task.
    """
    odd = {site: f"measured {why}" for site, m in found.items() if m.metrics and (why := strange(m.metrics, least))}
    able = {site: measured for site, measured in found.items() if measured.metrics is not None and site not in odd}
    own = leading({site: measured.own for site, measured in able.items()})
    if able and own is None:  # a tie: neither half decides for the other
        return None, odd | dict.fromkeys(able, "does not agree with the others whether all have the same data")
    kept = {site: measured.metrics for site, measured in able.items() if measured.own == own and measured.metrics}
    odd |= dict.fromkeys(able.keys() - kept.keys(), "says otherwise than most whose data it used")
    if not kept:
        return None, odd
    finite = leading({site: _finite(metrics) for site, metrics in kept.items()}) is not False
    if own:
        for site in [site for site, metrics in kept.items() if finite and not _finite(metrics)]:
            odd[site] = f"measured {_shown(kept.pop(site))} where most have finite values"
        parts = [(clients[site], metrics) for site, metrics in kept.items()]
        return (_median(list(kept.values())) if len(parts) >= FEWEST else _mean(parts)), odd
    group = max(([s for s in kept if _close(kept[s], kept[site])] for site in sorted(kept)), key=len)
    if 2 * len(group) <= len(kept):
        return None, odd | {
            site: f"measured {_shown(metrics)}: the sites do not agree" for site, metrics in kept.items()
        }
    median = _median([kept[site] for site in group])
    for site in kept.keys() - set(group):
        odd[site] = f"measured {_shown(kept[site])}, most others {_shown(median)}"
    return median, odd


def _same(one: Measured, other: Measured) -> bool:
    if (one.identity, one.own) != (other.identity, other.own) or one.metrics is None or other.metrics is None:
        return False
    return _close(one.metrics, other.metrics)


def _values(metrics: Metrics) -> Iterator[float]:
    yield metrics.loss
    if metrics.accuracy is not None:
        yield metrics.accuracy
    yield from (metrics.others[name] for name in sorted(metrics.others))


def _finite(metrics: Metrics) -> bool:
    return all(map(math.isfinite, _values(metrics)))


def _close(one: Metrics, other: Metrics) -> bool:
    """Whether two evaluations agree up to rounding; NaN and infinity both mean diverged, and count as equal."""
    if (one.accuracy is None) != (other.accuracy is None) or one.others.keys() != other.others.keys():
        return False
    pairs = zip(_values(one), _values(other), strict=True)
    return all(
        math.isclose(a, b, rel_tol=ROUNDING, abs_tol=ROUNDING) or not (math.isfinite(a) or math.isfinite(b))
        for a, b in pairs
    )


def _median(parts: Sequence[Metrics]) -> Metrics:
    """The lower median of each figure, hence a figure that some site sent; only of metrics that more than half of the
    sites have."""

    def most(values: Sequence[float | None]) -> float | None:
        given = [value for value in values if value is not None]
        return _lower_median(given) if 2 * len(given) > len(values) else None

    names = dict.fromkeys(name for metrics in parts for name in metrics.others)
    others = {name: most([metrics.others.get(name) for metrics in parts]) for name in names}
    return Metrics(
        _lower_median([metrics.loss for metrics in parts]),
        most([metrics.accuracy for metrics in parts]),
        {name: value for name, value in others.items() if value is not None},
    )


def _mean(parts: Sequence[tuple[int, Metrics]]) -> Metrics:
    """The mean over (clients, metrics of a site), weighted by clients; a metric that some sites lack is averaged over
    the others."""

    def mean(values: Sequence[tuple[int, float]]) -> float:
        total = sum(weight for weight, _ in values)
        return values[0][1] if len(values) == 1 else sum(weight * value for weight, value in values) / total

    accuracies = [(weight, m.accuracy) for weight, m in parts if m.accuracy is not None]
    names = dict.fromkeys(name for _, m in parts for name in m.others)
    others = {name: mean([(weight, m.others[name]) for weight, m in parts if name in m.others]) for name in names}
    return Metrics(mean([(w, m.loss) for w, m in parts]), mean(accuracies) if accuracies else None, others)


def _lower_median(values: Sequence[float]) -> float:
    """The lower median; NaN counts as the largest value."""
    return sorted(values, key=lambda value: (math.isnan(value), value))[(len(values) - 1) // 2]


def _shown(metrics: Metrics) -> str:
    accuracy = "" if metrics.accuracy is None else f", accuracy {metrics.accuracy:.4g}"
    return f"loss {metrics.loss:.4g}{accuracy}"
