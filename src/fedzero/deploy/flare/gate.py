"""Which messages of sites FLARE's server takes.

As it is, whoever has the certificate of a site may speak to every cell of the federation: stop the server's process or
its job, give orders to other sites, register under their addresses. Here a site speaks in its own name, to the server
and its jobs alone, and says only what an honest site says, not too often. A job gets one reply for each of its
requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any

from nvflare.apis.fl_constant import ReservedTopic, ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamDataType,
    StreamHeaderKey,
)
from nvflare.private.defs import CellMessageHeaderKeys, ClientType

from fedzero.deploy.flare.rate import Rate

ANSWERS = CellChannel.RETURN_ONLY
"""The channel of replies that FLARE sends as a stream; their topic is that of the request."""
TO_SERVER = {
    (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
    (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT),
    (CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Quit),
    (CellChannel.CELLNET, CellChannelTopic.Bye),
}
TO_JOBS = {
    (CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.SYNC_RUNNER),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.JOB_HEART_BEAT),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.TASK_CHECK),
}
"""Requests of an honest site, by channel and topic; those to a job come as streams of one frame."""
STREAMS = {(STREAM_CHANNEL, STREAM_ACK_TOPIC), (STREAM_CHANNEL, STREAM_ERROR_TOPIC)}
"""What is said about streams of the server's."""
LONGEST_REQUEST = 1 << 18
"""Bytes of a request at most; an honest one has a few hundred."""
AWAITED = 1000
"""Requests of jobs to a site whose replies are awaited at most; the oldest ones are forgotten."""
BURST, A_SECOND = 200, 50
"""Requests of a site at once, and a second; an honest one has a few a second, and some more when a job begins."""


def misplaced(site: str, headers: Mapping[str, Any], size: int) -> str:
    """Why the server does not take a message of a site; empty: it does."""
    kind, origin, destination = (
        headers.get(key) for key in (MessageHeaderKey.MSG_TYPE, MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION)
    )
    if not isinstance(origin, str) or origin.partition(".")[0] != site:
        return "in another's name"
    if not isinstance(destination, str) or destination.partition(".")[0] != FQCN.ROOT_SERVER:
        return "to another site"
    if kind in (MessageType.REPLY, MessageType.RETURN):
        return ""
    if kind != MessageType.REQ:
        return "of no kind"
    if headers.get(CellMessageHeaderKeys.CLIENT_TYPE, ClientType.REGULAR) != ClientType.REGULAR:
        return "that makes it more than a site"
    if size > LONGEST_REQUEST:
        return f"of {size} bytes that is no answer"
    honest = _of_an_honest_site(headers, origin == site, destination != FQCN.ROOT_SERVER, size)
    return "" if honest else "that no honest site sends"


def _of_an_honest_site(headers: Mapping[str, Any], whole: bool, to_job: bool, size: int) -> bool:
    """whole: from the site itself, not one of its processes for a job."""
    said = _words(headers, MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)
    if MessageHeaderKey.CONN_URL in headers:
        return False  # an address to which the server would connect
    if said in STREAMS:
        return True
    if said == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        if (
            headers.get(StreamHeaderKey.DATA_TYPE) != StreamDataType.FINAL
            or headers.get(StreamHeaderKey.SEQUENCE) != 0
            or headers.get(StreamHeaderKey.SIZE) != size
        ):
            return False  # several frames would have to be kept until the last one has come
        said = _words(headers, StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC)
    if said[0] == CellChannel.SERVER_MAIN and not whole:
        return False  # FLARE keeps what the site says of itself by the name of the part that says so
    return said in (TO_JOBS if to_job else TO_SERVER) or (to_job and said[0] == ANSWERS)


def _words(headers: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """Of some headers; what is no text is never that of an honest site."""
    return tuple(word if isinstance(word := headers.get(key), str) else "" for key in keys)


def may_be_called(name: object, site: str, jobs: Collection[str]) -> bool:
    """Whether a connection of a site may be that of a part of it with this name: itself, or its process for a job."""
    return name in (site, *(FQCN.join([site, job]) for job in jobs))


def keep_no_statistics() -> None:
    """FLARE has figures for every word that a message brings, for ever. Nobody reads them here."""
    HistPool.record_value = CounterPool.increment = lambda *_, **__: None


class Gate:
    """`misplaced`, whether requests come too often, and whether a reply to a job is awaited."""

    def __init__(self) -> None:
        self._awaited: dict[str, OrderedDict[str, None]] = {}
        self._rates: dict[str, Rate] = {}
        self._lock = Lock()

    def asked(self, headers: Mapping[str, Any]) -> None:
        """A job's message passes on its way to a site."""
        site, number = str(headers.get(MessageHeaderKey.DESTINATION)).partition(".")[0], _number(headers)
        if site == FQCN.ROOT_SERVER or number is None or not headers.get(MessageHeaderKey.REPLY_EXPECTED):
            return
        with self._lock:
            awaited = self._awaited.setdefault(site, OrderedDict())
            awaited[number] = None
            if len(awaited) > AWAITED:
                awaited.popitem(last=False)

    def refused(self, site: str, headers: Mapping[str, Any], size: int) -> str:
        """Why a message of a site is not taken; empty: it is."""
        why = misplaced(site, headers, size)
        if why:
            return why
        if headers[MessageHeaderKey.MSG_TYPE] == MessageType.REQ:
            with self._lock:
                rate = self._rates.setdefault(site, Rate(BURST, A_SECOND))
            return "that comes too soon after others" if rate.wait() else ""
        if headers[MessageHeaderKey.DESTINATION] == FQCN.ROOT_SERVER:
            return ""  # which knows itself what it has asked
        if headers[MessageHeaderKey.MSG_TYPE] == MessageType.RETURN and not _bounced(site, headers):
            return "in another's name"
        with self._lock:
            awaited, number = self._awaited.setdefault(site, OrderedDict()), _number(headers)
            if number is None or number not in awaited:
                return "that nobody waits for"
            del awaited[number]
        return ""


def _bounced(site: str, headers: Mapping[str, Any]) -> bool:
    """Whether a message that is returned undelivered was one to this site."""
    original = headers.get(MessageHeaderKey.ORIGINAL_HEADERS)
    destination = original.get(MessageHeaderKey.DESTINATION) if isinstance(original, dict) else None
    return isinstance(destination, str) and destination.partition(".")[0] == site


def _number(headers: Mapping[str, Any]) -> str | None:
    """FLARE's number of a request; of a reply it is a list of one."""
    found = headers.get(MessageHeaderKey.REQ_ID)
    if isinstance(found, list) and len(found) == 1:
        (found,) = found
    return found if isinstance(found, str) and found else None
